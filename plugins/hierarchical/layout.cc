#include "hierarchical/layout.h"

#include <algorithm>
#include <map>
#include <string>

namespace db::hierarchical {
namespace {

std::string about(const Announcement& said, size_t rank) {
  return "rank " + std::to_string(rank) + " is " + std::to_string(said.local_rank) + " of " +
         std::to_string(said.local_size);
}

Failure contradiction(const Announcement& said, size_t rank, const std::string& what) {
  return Failure::make(DB_ERR_MISMATCH,
                       about(said, rank) + " in its base \"local\", " + what +
                           "; give every rank of a machine the same local_size and a base "
                           "\"local\" of just that machine's ranks",
                       0, static_cast<int32_t>(rank));
}

}  // namespace

Failure Layout::make(const std::vector<Announcement>& said, int32_t rank, Layout* layout) {
  *layout = {};
  layout->rank = rank;
  std::map<int32_t, int32_t> machine_at;  // by first rank
  for (size_t i = 0; i < said.size(); ++i) {
    const Announcement& one = said[i];
    if (one.local_size < 1 || one.local_rank < 0 || one.local_rank >= one.local_size)
      return contradiction(one, i, "which that base cannot have");
    const auto [found, is_new] =
        machine_at.try_emplace(one.first, static_cast<int32_t>(layout->machines.size()));
    if (is_new) layout->machines.emplace_back(static_cast<size_t>(one.local_size), -1);
    std::vector<int32_t>& ranks = layout->machines[static_cast<size_t>(found->second)];
    if (ranks.size() != static_cast<size_t>(one.local_size))
      return contradiction(one, i,
                           "but other ranks of its machine say that it has " +
                               std::to_string(ranks.size()) + " ranks");
    int32_t& place = ranks[static_cast<size_t>(one.local_rank)];
    if (place >= 0) return contradiction(one, i, "and so is rank " + std::to_string(place));
    place = static_cast<int32_t>(i);
    layout->machine_of.push_back(found->second);
    layout->index_of.push_back(one.local_rank);
  }
  layout->lanes = INT32_MAX;
  for (const std::vector<int32_t>& ranks : layout->machines) {
    const auto missing = std::find(ranks.begin(), ranks.end(), -1);
    if (missing != ranks.end()) {
      const auto there =
          *std::find_if(ranks.begin(), ranks.end(), [](int32_t r) { return r >= 0; });
      const auto at = static_cast<size_t>(there);
      return contradiction(said[at], at,
                           "but this communicator has no rank that is " +
                               std::to_string(missing - ranks.begin()) + " there");
    }
    layout->lanes = std::min(layout->lanes, static_cast<int32_t>(ranks.size()));
  }
  return {};
}

std::vector<int32_t> Layout::lane(int32_t j) const {
  std::vector<int32_t> ranks;
  for (const std::vector<int32_t>& one : machines) ranks.push_back(one[static_cast<size_t>(j)]);
  return ranks;
}

bool Layout::is_one_machine() const {
  return machines.size() == 1 && std::is_sorted(machines[0].begin(), machines[0].end());
}

bool Layout::is_one_rank_each() const { return machine_count() == size(); }

std::pair<int32_t, int32_t> clients(int32_t local_size, int32_t lanes, int32_t j) {
  const auto begin = [&](int32_t lane) {
    return static_cast<int32_t>(int64_t{local_size} * lane / lanes);
  };
  return {begin(j), begin(j + 1)};
}

uint64_t part_begin(uint64_t count, int32_t parts, int32_t j) {
  const auto all = static_cast<uint64_t>(parts);
  const auto at = static_cast<uint64_t>(j);
  // The first parts have one element more.
  return count / all * at + std::min(count % all, at);
}

}  // namespace db::hierarchical
