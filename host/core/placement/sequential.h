// The device map that Accelerate's infer_auto_device_map makes: fills one device after the other,
// in the order of registration, and leaves room on the first accelerator and on the CPU for the
// largest layer still to be placed. Pure function, any thread.
#pragma once

#include <coupler/device_map.h>

#include <string>
#include <utility>
#include <vector>

#include "placement/module_tree.h"

namespace coupler::placement {

struct SequentialOptions {
  std::vector<std::string> no_split;
  bool fallback = false;
};

// Items in the order of placement. Buffers and second names that a divided module loses are
// omitted.
using Placement = std::vector<std::pair<TreeItem, MapDevice>>;

// memory is what each device may hold.
Placement place_sequentially(const ModuleTree& tree, const TreeSizes& sizes,
                             const MaxMemory& memory, const SequentialOptions& options);

// The memory limits with which a sequential placement fills all accelerators evenly: Accelerate's
// get_balanced_memory. Pure function, any thread.

// Devices without an entry stay without one. low_zero: as little as possible on the first
// accelerator; no effect if there is only one.
MaxMemory balanced_memory(const ModuleTree& tree, const TreeSizes& sizes, const MaxMemory& memory,
                          const std::vector<std::string>& no_split, bool low_zero);

}  // namespace coupler::placement
