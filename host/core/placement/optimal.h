// Finds the device map with the least predicted time, and predicts the time of a run with any map.
// Pure functions, any thread.
#pragma once

#include <coupler/device_map.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "placement/cost_model.h"
#include "placement/module_tree.h"

namespace coupler::placement {

// Searches for the device of each unit with which a run takes the least predicted time. Pure
// function, any thread; the same problem always gives the same answer.
//
// It starts with initial assignments (devices filled in several orders, with and without room for
// copies), improves the best by moving and swapping units, then runs branch and bound over all
// assignments, in the order of units. The result is exact if branch and bound completes, as it does
// for a dozen units; for more, a limit on predictions, not on time, ends it.

struct SearchResult {
  std::vector<size_t> assignment;  // the device index of each unit
  double seconds = 0;              // of a run with it
  bool exact = false;              // proven optimal
};

// nullopt if no assignment that fits was found. Units of one group are on one device. `starts`:
// assignments to try in addition to the initial ones.
std::optional<SearchResult> search_placement(const CostModel& model,
                                             const std::vector<RunUnit>& units,
                                             const std::vector<std::vector<size_t>>& starts = {});

// Throws Error(kInvalidArgument) if a single tensor is larger than any device except the disk may
// hold, or if no map that fits was found.
DeviceMap optimal_map(const ModuleTree& tree, const TreeSizes& sizes,
                      const DeviceMapOptions& options);

// Throws Error(kInvalidArgument) as check_map does, and for an accelerator that is not in
// max_memory. options.max_memory must not be empty.
PredictedRun predicted_run(const ModuleTree& tree, const DeviceMap& map,
                           const DeviceMapOptions& options);

}  // namespace coupler::placement
