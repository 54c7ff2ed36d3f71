// The device map with the least predicted time, and what a run with any map is predicted to take.
// Pure functions, any thread.
#pragma once

#include <coupler/device_map.h>

#include "placement/module_tree.h"
#include "placement/sizes.h"

namespace coupler {

// Throws Error(kInvalidArgument) where a single tensor is larger than what any device but the disk
// may hold, and where nothing was found that fits.
DeviceMap optimal_map(const ModuleTree& tree, const TreeSizes& sizes,
                      const DeviceMapOptions& options);

// Throws Error(kInvalidArgument) as check_map does, and for an accelerator that max_memory does not
// name. options.max_memory must not be empty.
PredictedRun predicted_run(const ModuleTree& tree, const DeviceMap& map,
                           const DeviceMapOptions& options);

}  // namespace coupler
