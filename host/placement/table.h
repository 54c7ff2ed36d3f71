// A device map for people. Pure function, any thread.
#pragma once

#include <coupler/device_map.h>

#include <string>

#include "placement/module_tree.h"

namespace coupler {

// A row for each entry, neighbours alike in name and device as one ("transformer.h.0 … 23"), and a
// bar for each device: how much of max_memory its tensors take, or of what the fullest has where
// there is no limit. Throws Error(kInvalidArgument) as check_map does. Ends with a newline.
std::string table_of(const ModuleTree& tree, const DeviceMap& map, const DeviceMapOptions& options);

}  // namespace coupler
