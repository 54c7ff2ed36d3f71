// Finds the device map with the least predicted time, and predicts the time of a run with any map.
// Pure functions, any thread.
#pragma once

#include <coupler/device_map.h>

#include "placement/module_tree.h"
#include "placement/sizes.h"

namespace coupler {

// Throws Error(kInvalidArgument) if a single tensor is larger than any device except the disk may
// hold, or if no map that fits was found.
DeviceMap optimal_map(const ModuleTree& tree, const TreeSizes& sizes,
                      const DeviceMapOptions& options);

// Throws Error(kInvalidArgument) as check_map does, and for an accelerator that is not in
// max_memory. options.max_memory must not be empty.
PredictedRun predicted_run(const ModuleTree& tree, const DeviceMap& map,
                           const DeviceMapOptions& options);

}  // namespace coupler
