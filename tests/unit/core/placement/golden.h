// What make_golden.py recorded from Accelerate: trees, options and the resulting maps.
#pragma once

#include <coupler/device_map.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "placement/module_tree.h"

namespace coupler::placement {

inline nlohmann::json read_golden() {
  std::ifstream file(COUPLER_SOURCE_DIR "/tests/unit/core/placement/device_maps.json");
  return nlohmann::json::parse(file);
}

// [name, class, object, [[tensor, elements, dtype, kind, storage]…], [children…]]
inline void fill(ModuleTree& tree, size_t module, const nlohmann::json& node) {
  for (const auto& row : node[3]) {
    const std::string kind = row[3];
    tree.add_tensor(module, {.name = row[0],
                             .elements = row[1],
                             .type = &tensor_type(row[2].get<std::string>(), "golden"),
                             .kind = kind == "p" ? TensorKind::kParameter : TensorKind::kBuffer,
                             .storage = row[4]});
  }
  for (const auto& child : node[4])
    fill(tree, tree.add_module(module, child[0], child[1], child[2]), child);
}

inline ModuleTree tree_of(const nlohmann::json& node) {
  ModuleTree tree(node[1]);
  fill(tree, 0, node);
  return tree;
}

inline MapDevice device_of(const nlohmann::json& device) {
  return device.is_string() ? MapDevice(device.get<std::string>()) : MapDevice(device.get<int>());
}

inline MaxMemory memory_of(const nlohmann::json& rows) {
  MaxMemory memory;
  for (const auto& row : rows) memory.set(device_of(row[0]), row[1].get<uint64_t>());
  return memory;
}

inline DeviceMapOptions options_of(const nlohmann::json& golden) {
  DeviceMapOptions options;
  options.max_memory = memory_of(golden["max_memory"]);
  options.mode = golden["mode"];
  options.no_split_module_classes = golden["no_split"].get<std::vector<std::string>>();
  if (!golden["dtype"].is_null()) options.dtype = golden["dtype"];
  options.special_dtypes = golden["special"].get<std::map<std::string, std::string>>();
  options.offload_buffers = golden["offload_buffers"];
  options.clean_result = golden["clean"];
  options.fallback_allocation = golden["fallback"];
  return options;
}

// Accelerate's result is a Python dict whose order after cleaning varies between runs.
inline std::map<std::string, MapDevice> unordered(const DeviceMap& map) {
  return {map.entries().begin(), map.entries().end()};
}
inline std::map<std::string, MapDevice> map_of(const nlohmann::json& golden) {
  std::map<std::string, MapDevice> map;
  for (const auto& [path, device] : golden.items()) map.emplace(path, device_of(device));
  return map;
}

}  // namespace coupler::placement
