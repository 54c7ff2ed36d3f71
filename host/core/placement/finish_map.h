// Turns a placement into a device map that covers every tensor. Pure functions, any thread.
#pragma once

#include <coupler/device_map.h>

#include "placement/module_tree.h"
#include "placement/sequential.h"
#include "placement/sizes.h"

namespace coupler {

// Entries in the order of registration. clean: a module's entries on one device become one, as in
// Accelerate's clean_device_map. Then tensors that the placement omits get their own entries:
// second names of parameters go where the first name is, buffers where their module's first tensor
// is.
DeviceMap finished_map(const ModuleTree& tree, const TreeSizes& sizes, const Placement& placement,
                       bool clean);

}  // namespace coupler
