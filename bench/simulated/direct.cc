#include <algorithm>

#include "schedules.h"

namespace coupler::bench::simulated {
namespace {

using db::gloo_cpu::CirculantRound;
using db::gloo_cpu::PartRun;

// The backend sends two messages where the parts lie around the buffer's end. Here they are one, so
// that all members of a round do the same.
Part joined(const std::vector<PartRun>& runs, const std::vector<Part>& parts) {
  Part all;
  for (const PartRun& run : runs) {
    for (int i = run.first; i < run.first + run.count; ++i)
      append(&all, parts[static_cast<size_t>(i)]);
  }
  return all;
}

}  // namespace

// Small data, in one round.
void Direct::exchange(const Block& block) {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int i = 1; i < group_.size(); ++i) {
    sends.push_back({group_.rank(group_.index + i), {block}});
    receives.push_back({group_.rank(group_.index - i), {block}, true});
  }
  rank_.round(sends, receives);
}

// Small data as well: an all_gather of what each member contributes, which each then adds up.
void Direct::circulant_exchange(const Block& block) {
  const uint64_t room = rank_.room(block.count * static_cast<uint64_t>(group_.size()));
  std::vector<Part> slots;
  std::vector<Block> contributions;
  for (int i = 0; i < group_.size(); ++i) {
    contributions.push_back({room + static_cast<uint64_t>(i) * block.count, block.count});
    slots.push_back({contributions.back()});
  }
  rank_.store_sum({block}, contributions[static_cast<size_t>(group_.index)]);
  all_gather(slots);
  rank_.store_sum(contributions, block);
}

void Direct::all_reduce(const Block& block) {
  const uint64_t bytes = block.count * kElementBytes,
                 others = static_cast<uint64_t>(group_.size() - 1);
  if (others == 0) return;
  if (bytes * others <= limits_.exchange_bytes ||
      (others == 1 && bytes <= limits_.pair_exchange_bytes))
    return rounds_.empty() ? exchange(block) : circulant_exchange(block);
  if (!rounds_.empty()) {
    const auto parts = even_parts(block, group_.size());
    reduce_scatter(parts);
    return all_gather(parts);
  }
  std::vector<Send> sends;
  std::vector<Receive> receives;
  const uint64_t slice = limits_.slice_bytes / kElementBytes;
  const uint64_t slices = std::max<uint64_t>((block.count + slice - 1) / slice, 1);
  const uint64_t end = group_.is_whole ? rank_.repeats(slices) : slices;
  const auto parts_of = [&](uint64_t i) {
    return even_parts({block.begin + i * slice, std::min(slice, block.count - i * slice)},
                      group_.size());
  };
  std::vector<Part> combined, spread;
  for (uint64_t i = 0; i <= end; ++i) {
    sends.clear();
    receives.clear();
    spread = std::move(combined);
    combined = i < end ? parts_of(i) : std::vector<Part>();
    for (int k = 1; k < group_.size(); ++k) {
      const int to = group_.rank(group_.index + k), from = group_.rank(group_.index - k);
      const auto next = static_cast<size_t>((group_.index + k) % group_.size());
      const auto own = static_cast<size_t>(group_.index);
      const auto before = static_cast<size_t>((group_.index - k + group_.size()) % group_.size());
      if (i < end) {
        sends.push_back({to, combined[next]});
        receives.push_back({from, combined[own], true});
      }
      if (i > 0) {
        sends.push_back({to, spread[own]});
        receives.push_back({from, spread[before], false});
      }
    }
    rank_.round(sends, receives);
  }
}

void Direct::reduce_scatter(const std::vector<Part>& parts) {
  for (const CirculantRound& round : rounds_)
    rank_.round({{group_.rank(round.to), joined(round.given, parts)}},
                {{group_.rank(round.from), joined(round.received, parts), true}});
  if (!rounds_.empty()) return;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int k = 1; k < group_.size(); ++k) {
    sends.push_back({group_.rank(group_.index + k),
                     parts[static_cast<size_t>((group_.index + k) % group_.size())]});
    receives.push_back(
        {group_.rank(group_.index - k), parts[static_cast<size_t>(group_.index)], true});
  }
  rank_.round(sends, receives);
}

void Direct::all_gather(const std::vector<Part>& parts) {
  for (auto round = rounds_.rbegin(); round != rounds_.rend(); ++round)
    rank_.round({{group_.rank(round->from), joined(round->received, parts)}},
                {{group_.rank(round->to), joined(round->given, parts), false}});
  if (!rounds_.empty()) return;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int k = 1; k < group_.size(); ++k) {
    const auto before = static_cast<size_t>((group_.index - k + group_.size()) % group_.size());
    sends.push_back({group_.rank(group_.index + k), parts[static_cast<size_t>(group_.index)]});
    receives.push_back({group_.rank(group_.index - k), parts[before], false});
  }
  rank_.round(sends, receives);
}

}  // namespace coupler::bench::simulated
