// Which items of a tree stay together: layers, which are not divided, and the parts of the other
// modules. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "placement/module_tree.h"

namespace coupler::placement {

// A module's children, each object once, as Python's named_children lists them.
std::vector<TreeItem> distinct_children(const ModuleTree& tree, size_t module);

// The parts into which Accelerate divides an item: its own parameters, each once, and its children;
// its own buffers are omitted. Empty for a layer.
std::vector<TreeItem> divided(const ModuleTree& tree, const std::vector<std::string>& no_split,
                              TreeItem item);

// The items with which Accelerate starts: the root's parameters, children and buffers.
std::vector<TreeItem> top_level(const ModuleTree& tree);

// The largest size of a layer among or below items, in bits, and the layers that have it. A layer
// is a tensor, a module without children, or one of a class in no_split.
struct LargestLayers {
  int64_t bits = 0;
  std::vector<TreeItem> layers;
};
LargestLayers largest_layers(const ModuleTree& tree, const TreeSizes& sizes,
                             const std::vector<std::string>& no_split,
                             const std::deque<TreeItem>& items);

// Parameters that share a tensor under several names: groups in the order of registration, each
// sorted by name.
std::vector<std::vector<size_t>> tied_groups(const ModuleTree& tree, const TreeSizes& sizes);

}  // namespace coupler::placement
