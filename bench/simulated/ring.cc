#include "schedules.h"

namespace coupler::bench::simulated {

int Ring::rounds() {
  const auto all = static_cast<uint64_t>(group_.size() - 1);
  return static_cast<int>(group_.is_whole ? rank_.repeats(all) : all);
}

void Ring::reduce_scatter(const std::vector<Part>& parts) {
  const int size = group_.size(), end = rounds();
  const auto part = [&](int member) {
    return parts[static_cast<size_t>((member + 2 * size) % size)];
  };
  for (int round = 0; round < end; ++round)
    rank_.round({{group_.rank(group_.index + 1), part(group_.index - round - 1)}},
                {{group_.rank(group_.index - 1), part(group_.index - round - 2), true}});
}

void Ring::all_gather(const std::vector<Part>& parts) {
  const int size = group_.size(), end = rounds();
  const auto part = [&](int member) {
    return parts[static_cast<size_t>((member + 2 * size) % size)];
  };
  for (int round = 0; round < end; ++round)
    rank_.round({{group_.rank(group_.index + 1), part(group_.index - round)}},
                {{group_.rank(group_.index - 1), part(group_.index - round - 1), false}});
}

void Ring::all_reduce(const Block& block) {
  const auto parts = even_parts(block, group_.size());
  reduce_scatter(parts);
  all_gather(parts);
}

}  // namespace coupler::bench::simulated
