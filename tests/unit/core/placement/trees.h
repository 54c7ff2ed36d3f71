// Small trees for tests, made by hand or at random.
#pragma once

#include <coupler/device_map.h>
#include <fmt/format.h>

#include <random>
#include <string>
#include <vector>

#include "placement/module_tree.h"

namespace coupler::placement {

// Adds one parameter of this many bytes, with its own storage unless one is given.
inline void add_bytes(ModuleTree& tree, size_t module, const std::string& name, uint64_t bytes,
                      TensorKind kind = TensorKind::kParameter, int64_t storage = -1) {
  tree.add_tensor(module, {.name = name,
                           .elements = bytes,
                           .type = &tensor_type("uint8", "test"),
                           .kind = kind,
                           .storage = storage >= 0 ? static_cast<uint64_t>(storage)
                                                   : 1000 + tree.tensors.size()});
}

// Adds a child of parent, with its own object number.
inline size_t add_child(ModuleTree& tree, size_t parent, const std::string& name,
                        const std::string& type = "Layer") {
  return tree.add_module(parent, name, type, tree.modules.size());
}

// Layers "0", "1", … with one weight each, of these sizes in bytes.
inline ModuleTree layers(const std::vector<uint64_t>& bytes) {
  ModuleTree tree("Net");
  for (size_t i = 0; i < bytes.size(); ++i)
    add_bytes(tree, add_child(tree, 0, std::to_string(i)), "weight", bytes[i]);
  return tree;
}

// Blocks of one to three layers, some with buffers and ties.
inline ModuleTree random_tree(std::mt19937& random, int blocks) {
  const auto up_to = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  ModuleTree tree("Net");
  std::vector<std::pair<uint64_t, uint64_t>> made;  // storage, bytes
  for (int b = 0; b < blocks; ++b) {
    const size_t block = add_child(tree, 0, std::to_string(b), up_to(2) == 0 ? "Block" : "Plain");
    if (up_to(4) == 0) add_bytes(tree, block, "scale", 1 + static_cast<uint64_t>(up_to(20)));
    if (up_to(5) == 0)
      add_bytes(tree, block, "mask", 1 + static_cast<uint64_t>(up_to(10)), TensorKind::kBuffer);
    const int inner = 1 + up_to(3);
    for (int i = 0; i < inner; ++i) {
      const size_t layer = add_child(tree, block, std::to_string(i));
      if (!made.empty() && up_to(8) == 0) {
        const auto [storage, bytes] = made[random() % made.size()];
        add_bytes(tree, layer, "weight", bytes, TensorKind::kParameter,
                  static_cast<int64_t>(storage));
      } else {
        const auto bytes = static_cast<uint64_t>(up_to(100)) + 1;
        made.emplace_back(1000 + tree.tensors.size(), bytes);
        add_bytes(tree, layer, "weight", bytes);
      }
    }
  }
  return tree;
}

// Rates that keep a test's numbers readable: bytes and seconds.
inline DeviceRates plain_rates() {
  DeviceRates rates;
  rates.accelerator_compute = 100;
  rates.cpu_compute = 5;
  rates.cpu_to_accelerator = 10;
  rates.disk_to_cpu = 2;
  rates.hop_seconds = 0;
  return rates;
}

}  // namespace coupler::placement
