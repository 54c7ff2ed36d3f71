// Units: the parts of a model that run, and move, as one. The terms are those of predict_run in
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
  uint64_t lives = 0;  // bytes where it lies: parameters at their first name only, all buffers
  uint64_t stays = 0;  // of these what stays on the main device when the unit is offloaded
  uint64_t moves = 0;  // bytes that are copied for a use elsewhere
  uint64_t reads = 0;  // bytes that a use reads
  double uses = 1;
  size_t group = 0;  // units with tied parameters have the same one, and one device
};

// In the order of registration. A unit that no accelerator may hold (without one: that the CPU may
// not) is divided, down to single tensors. Groups are numbered from 0. Throws
// Error(kInvalidArgument) for uses of what is not there, or not above 0.
std::vector<RunUnit> run_units(const ModuleTree& tree, const TreeSizes& sizes,
                               const DeviceMapOptions& options);

// The same with units whose tensors the map puts on several devices divided by device.
std::vector<RunUnit> run_units(const ModuleTree& tree, const TreeSizes& sizes,
                               const DeviceMapOptions& options, const DeviceMap& map);

// The path of a unit, for people.
const std::string& name_of(const ModuleTree& tree, const RunUnit& unit);

}  // namespace coupler
