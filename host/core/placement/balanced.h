// The memory limits with which a sequential placement fills all accelerators evenly: Accelerate's
// get_balanced_memory. Pure function, any thread.
#pragma once

#include <coupler/max_memory.h>

#include <string>
#include <vector>

#include "placement/module_tree.h"
#include "placement/sizes.h"

namespace coupler {

// Devices without an entry stay without one. low_zero: as little as possible on the first
// accelerator; no effect if there is only one.
MaxMemory balanced_memory(const ModuleTree& tree, const TreeSizes& sizes, const MaxMemory& memory,
                          const std::vector<std::string>& no_split, bool low_zero);

}  // namespace coupler
