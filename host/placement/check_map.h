// Whether a device map fits a model, and whether a model fits its memory at all. Pure functions,
// any thread.
#pragma once

#include <coupler/device_map.h>

#include <cstdint>
#include <string>
#include <vector>

#include "placement/module_tree.h"
#include "placement/sizes.h"

namespace coupler {

// Throws Error(kInvalidArgument) where the map names what the tree has not, leaves a tensor out or
// puts tied parameters on different devices.
void check_map(const ModuleTree& tree, const DeviceMap& map);

// Throws Error(kInvalidArgument) where a layer is larger than what each accelerator and the CPU may
// hold: it could lie on the disk, but run nowhere.
void check_largest_layer(const ModuleTree& tree, const TreeSizes& sizes, const MaxMemory& memory,
                         const std::vector<std::string>& no_split);

// The error of both: what is too large, and the most that a device may hold.
[[noreturn]] void refuse_size(const std::string& name, uint64_t bytes, uint64_t most);

// Throws Error(kInvalidArgument) for a path that is no module or tensor of the tree. `what` is the
// option it was given for.
void check_path(const ModuleTree& tree, const std::string& path, const std::string& what);

}  // namespace coupler
