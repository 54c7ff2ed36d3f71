// Layout: which ranks of a communicator are on which machine, and who does what in a collective.
//
// In a collective, every machine has the same number of lanes. Lane j of a machine is the rank with
// local index j; the lanes j of all machines form one communicator of the base `across`. On its
// machine, a lane handles the data of its clients: consecutive local indices, all together the
// machine's ranks. There are as many lanes as the smallest machine has ranks, or one, the leader,
// for small data. Plain values and pure functions; [any-thread].
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/error.h"

namespace db::hierarchical {

// What one rank says about itself, exchanged as it is.
struct Announcement {
  int32_t first = 0;  // the machine's first rank in this communicator
  int32_t local_rank = 0;
  int32_t local_size = 0;
  int32_t reserved = 0;
};

struct Layout {
  // By machine, in the order of their first ranks, and by local index: the rank.
  std::vector<std::vector<int32_t>> machines;
  std::vector<int32_t> machine_of;  // by rank
  std::vector<int32_t> index_of;    // by rank: its local index
  int32_t rank = 0;
  int32_t lanes = 1;

  // Fails, naming ranks, if the announcements contradict each other: a machine whose ranks come
  // with different sizes.
  static Failure make(const std::vector<Announcement>& said, int32_t rank, Layout* layout);

  int32_t size() const { return static_cast<int32_t>(machine_of.size()); }
  int32_t machine() const { return machine_of[static_cast<size_t>(rank)]; }
  int32_t index() const { return index_of[static_cast<size_t>(rank)]; }
  int32_t machine_count() const { return static_cast<int32_t>(machines.size()); }
  const std::vector<int32_t>& own_machine() const { return on(machine()); }
  const std::vector<int32_t>& on(int32_t machine) const {
    return machines[static_cast<size_t>(machine)];
  }
  // The ranks of lane j, by machine.
  std::vector<int32_t> lane(int32_t j) const;
  // All ranks are on one machine, with local indices in the order of the ranks.
  bool is_one_machine() const;
  bool is_one_rank_each() const;  // every machine has one rank
  bool shares_machine(int32_t other) const {
    return machine_of[static_cast<size_t>(other)] == machine();
  }
};

// The local indices of the clients of lane j of `lanes`, on a machine of local_size ranks.
std::pair<int32_t, int32_t> clients(int32_t local_size, int32_t lanes, int32_t j);

// Where part j of `parts` of count elements begins; part `parts` is the end.
uint64_t part_begin(uint64_t count, int32_t parts, int32_t j);

}  // namespace db::hierarchical
