// Device maps of a described model: inferred (what coupler/device_map.h promises, without
// LibTorch), checked, and printed. Pure functions, any thread.
#pragma once

#include <coupler/device_map.h>

#include <cstdint>
#include <string>
#include <vector>

#include "placement/module_tree.h"
#include "placement/sequential.h"

namespace coupler::placement {

// infer_auto_device_map. options.max_memory must not be empty.
DeviceMap infer_device_map(const ModuleTree& tree, const DeviceMapOptions& options);

// Throws Error(kInvalidArgument) if the map names something that is not in the tree, leaves out a
// tensor, or puts tied parameters on different devices.
void check_map(const ModuleTree& tree, const DeviceMap& map);

// Throws Error(kInvalidArgument) if a layer or tensor is larger than what any accelerator or the
// CPU may hold: it could be stored on disk, but not run anywhere.
void check_size(const std::string& name, uint64_t bytes, const MaxMemory& memory);

// Throws Error(kInvalidArgument) if path is not a module or tensor of the tree. `what` is the
// option it was given for.
void check_path(const ModuleTree& tree, const std::string& path, const std::string& what);

// Turns a placement into a device map that covers every tensor. Entries in the order of
// registration. clean: a module's entries on one device become one, as in Accelerate's
// clean_device_map. Then tensors that the placement omits get their own entries: second names of
// parameters go where the first name is, buffers where their module's first tensor is.
DeviceMap finished_map(const ModuleTree& tree, const TreeSizes& sizes, const Placement& placement,
                       bool clean);

// One row per entry, with consecutive numbered modules of equal size on one device merged
// ("transformer.h.0 … 23"), and one bar per device: its tensors' share of max_memory, or of the
// fullest device's bytes if there is no limit. Throws Error(kInvalidArgument) as check_map does.
// Ends with a newline.
std::string table_of(const ModuleTree& tree, const DeviceMap& map, const DeviceMapOptions& options);

}  // namespace coupler::placement
