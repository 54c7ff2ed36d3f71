// From a placement to a device map that holds for every tensor. Pure functions, any thread.
#pragma once

#include <coupler/device_map.h>

#include "placement/module_tree.h"
#include "placement/sequential.h"
#include "placement/sizes.h"

namespace coupler {

// Entries in the order of registration. clean: all of a module's on one device become one, as in
// Accelerate's clean_device_map. Then what the placement lost gets entries of its own: parameters
// and second names where the first name is, buffers where what is first below their module is.
DeviceMap finished_map(const ModuleTree& tree, const TreeSizes& sizes, const Placement& placement,
                       bool clean);

}  // namespace coupler
