// infer_auto_device_map for a described model: what coupler/device_map.h promises, without
// LibTorch. Pure functions, any thread.
#pragma once

#include <coupler/device_map.h>

#include "placement/module_tree.h"

namespace coupler::placement {

// options.max_memory must not be empty.
DeviceMap infer_device_map(const ModuleTree& tree, const DeviceMapOptions& options);

}  // namespace coupler::placement
