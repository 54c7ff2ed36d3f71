// Placement: on which NUMA node the pages of a segment should be. Pure functions, and one that asks
// the kernel for it. [any-thread]
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shm/segment.h"

namespace db::shm {

struct PlacedRange {
  uint64_t offset = 0;  // bytes, whole pages
  uint64_t bytes = 0;
  int32_t node = 0;

  friend bool operator==(const PlacedRange&, const PlacedRange&) = default;
};

// The node on which the calling thread runs; 0 if the system does not say.
int32_t current_node();

// A rank's slots and staging memory are on its own node: it writes them, and all the others read
// them. A ring is on its receiver's node. Empty if all ranks are on one node. nodes: by rank.
std::vector<PlacedRange> plan_placement(const Layout& layout, const std::vector<int32_t>& nodes);

// Before the pages are used. Returns what the kernel refused, "" if nothing: the memory then works,
// but may be farther away.
std::string place(uint8_t* base, const std::vector<PlacedRange>& ranges);

}  // namespace db::shm
