// Prints a device map as a table for people. Pure function, any thread.
#pragma once

#include <coupler/device_map.h>

#include <string>

#include "placement/module_tree.h"

namespace coupler::placement {

// One row per entry, with consecutive numbered modules of equal size on one device merged
// ("transformer.h.0 … 23"), and one bar per device: its tensors' share of max_memory, or of the
// fullest device's bytes if there is no limit. Throws Error(kInvalidArgument) as check_map does.
// Ends with a newline.
std::string table_of(const ModuleTree& tree, const DeviceMap& map, const DeviceMapOptions& options);

}  // namespace coupler::placement
