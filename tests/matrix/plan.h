// Plan: the sizes and contents of one cell on every rank. Plain values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "cells.h"

namespace coupler::matrix {

// A contiguous range of a rank's input.
struct Stretch {
  int rank;
  uint64_t first;
  uint64_t count;
};

struct Plan {
  Cell cell;
  int world_size = 1, me = 0, root = 0;
  uint64_t number = 0;           // of the cell, from 1
  bool polls = false;            // polls for completion instead of waiting
  std::vector<uint64_t> counts;  // V kinds with one array: by rank

  uint64_t count_of(int rank) const { return counts[static_cast<size_t>(rank)]; }
  uint64_t before(int rank) const;
  // ALL_TO_ALL_V: symmetric, so that it can be in-place; some parts are empty.
  uint64_t between(int from, int to) const;
  uint64_t sent_before(int from, int to) const;

  uint64_t send_size(int rank) const;
  uint64_t recv_size(int rank) const;
  // In-place: the smaller buffer's offset in the larger one, in elements.
  uint64_t part() const;
  // The parts of this rank's result, in order. Reducing kinds: one stretch, reduced over all ranks.
  std::vector<Stretch> origin() const;
};

Plan plan_of(const Cell& cell, int world_size, int me, uint64_t number);

}  // namespace coupler::matrix
