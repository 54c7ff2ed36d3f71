// Predicts the time of a run with each unit on a given device, by the model that
// coupler/device_map.h describes for predict_run. Pure functions, any thread; predict_time()
// allocates only if there are many devices.
#pragma once

#include <coupler/device_map.h>

#include <cstdint>
#include <string>
#include <vector>

#include "placement/module_tree.h"

namespace coupler::placement {

// Units: the parts of a model that run, and move, as a whole. The terms are those of predict_run in
// coupler/device_map.h. Pure functions, any thread.

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

// What the cost model needs to know about a unit; all but reads and copies in bytes.
struct CostUnit {
  uint64_t lives = 0, stays = 0, moves = 0;
  double reads = 0;   // bytes × uses
  double copies = 0;  // bytes × uses
};

struct CostModel {
  std::vector<CostUnit> units;
  // Accelerators by number, then the CPU, then the disk; the last two always exist.
  std::vector<MapDevice> devices;
  std::vector<uint64_t> memory;
  std::vector<double> rate;  // of computing; 0 for the disk
  double cpu_to_accelerator = 0, disk_to_cpu = 0, hop = 0;

  size_t cpu() const { return devices.size() - 2; }
  size_t disk() const { return devices.size() - 1; }
};

// Throws Error(kInvalidArgument) for a rate that is not above 0.
CostModel make_cost_model(const std::vector<RunUnit>& units, const DeviceMapOptions& options);

// assignment: the device index of each unit. The result's units are left out unless with_units;
// their paths are left empty.
PredictedRun predict_time(const CostModel& model, const std::vector<size_t>& assignment,
                          bool with_units = false);

}  // namespace coupler::placement
