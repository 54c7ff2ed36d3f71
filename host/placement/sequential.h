// The device map that Accelerate's infer_auto_device_map makes: one device filled after the other,
// in the order of registration, with room left on the first accelerator and on the CPU for the
// largest layer that is still to come. Pure function, any thread.
#pragma once

#include <coupler/device_map.h>

#include <string>
#include <utility>
#include <vector>

#include "placement/layers.h"
#include "placement/module_tree.h"
#include "placement/sizes.h"

namespace coupler {

struct SequentialOptions {
  std::vector<std::string> no_split;
  bool fallback = false;
};

// Items in the order in which they were placed. What a module that was divided loses (buffers, and
// second names) is not among them.
using Placement = std::vector<std::pair<TreeItem, MapDevice>>;

// memory is what each device may hold.
Placement place_sequentially(const ModuleTree& tree, const TreeSizes& sizes,
                             const MaxMemory& memory, const SequentialOptions& options);

}  // namespace coupler
