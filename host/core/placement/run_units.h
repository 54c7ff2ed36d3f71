// Units: the parts of a model that run, and move, as a whole. The terms are those of predict_run in
// coupler/device_map.h. Pure functions, any thread.
#pragma once

#include <coupler/device_map.h>

#include <cstdint>
#include <string>
#include <vector>

#include "placement/module_tree.h"
#include "placement/sizes.h"

namespace coupler {

struct RunUnit {
  std::vector<TreeItem> items;  // one module, or tensors of one
  std::vector<size_t> tensors;
  uint64_t lives = 0;  // bytes on its device: parameters at their first name only, all buffers
  uint64_t stays = 0;  // bytes that stay on the main device when the unit is offloaded
  uint64_t moves = 0;  // bytes copied per use on another device
  uint64_t reads = 0;  // bytes read per use
  double uses = 1;
  size_t group = 0;  // units with tied parameters share it, and share a device
};

// In the order of registration. A unit too large for every accelerator (for the CPU, without one)
// is divided, down to single tensors. Groups are numbered from 0. Throws Error(kInvalidArgument) if
// options.uses has an unknown path or a number not above 0.
std::vector<RunUnit> run_units(const ModuleTree& tree, const TreeSizes& sizes,
                               const DeviceMapOptions& options);

// The same, but units whose tensors the map puts on several devices are divided by device.
std::vector<RunUnit> run_units(const ModuleTree& tree, const TreeSizes& sizes,
                               const DeviceMapOptions& options, const DeviceMap& map);

// The path of a unit, for messages.
const std::string& name_of(const ModuleTree& tree, const RunUnit& unit);

}  // namespace coupler
