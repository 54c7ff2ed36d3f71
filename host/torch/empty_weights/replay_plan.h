// Plans which recorded operations must run to give some storages their values, and when each
// storage's memory can be freed. Pure; the caller holds the recipe's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_set>
#include <vector>

#include "empty_weights/recipe.h"

namespace coupler {

struct ReplayStep {
  size_t operation = 0;
  bool skip_draw = false;          // only move the generator to where this operation left it
  std::vector<uint64_t> finished;  // wanted storages that nothing touches after this step
  std::vector<uint64_t> dead;      // storages whose contents are not read after it
};

// Steps in recorded order. With `stream_end`, also the draws that lead to the state in which the
// last random operation left the generator.
std::vector<ReplayStep> plan_replay(const std::deque<Operation>& operations,
                                    std::unordered_set<uint64_t> wanted, bool stream_end);

}  // namespace coupler
