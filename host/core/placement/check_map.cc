#include "placement/check_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/byte_size.h"
#include "base/fail.h"
#include "base/file_text.h"
#include "base/nearest.h"
#include "placement/layers.h"

namespace coupler {
namespace {

std::vector<std::string> all_paths(const ModuleTree& tree) {
  std::vector<std::string> paths;
  for (const TreeModule& module : tree.modules) paths.push_back(module.name);
  for (const TreeTensor& tensor : tree.tensors) paths.push_back(tensor.name);
  return paths;
}

void check_complete(const ModuleTree& tree, const DeviceMap& map) {
  constexpr size_t kShown = 5;
  std::vector<std::string> missing;
  for (const TreeTensor& tensor : tree.tensors)
    if (!map.device_of(tensor.name)) missing.push_back(tensor.name);
  if (missing.empty()) return;
  const std::string first = missing.front();
  const size_t more = missing.size() - std::min(missing.size(), kShown);
  missing.resize(missing.size() - more);
  fail_argument(fmt::format("the device map has no device for '{}'{}", fmt::join(missing, "', '"),
                            more == 0 ? "" : fmt::format(" and {} more", more)),
                first, "add entries for these or for modules above them; \"\" is the whole model");
}

void check_ties(const ModuleTree& tree, const DeviceMap& map) {
  for (const auto& group : tied_groups(tree, TreeSizes(tree, {}))) {
    const std::string& first = tree.tensors[group.front()].name;
    for (const size_t other : group) {
      const std::string& name = tree.tensors[other].name;
      const auto a = *map.device_of(first), b = *map.device_of(name);
      if (a == b) continue;
      fail_argument(
          fmt::format(
              "the device map puts '{}' on {} and '{}' on {}, but they are the same parameter",
              first, a.to_string(), name, b.to_string()),
          name, "put both on the same device");
    }
  }
}

}  // namespace

void check_path(const ModuleTree& tree, const std::string& path, const std::string& what) {
  const std::vector<std::string> paths = all_paths(tree);
  if (std::find(paths.begin(), paths.end(), path) != paths.end()) return;
  const std::string near = nearest_name(path, paths);
  fail_argument(fmt::format("{}: the model has no module or tensor '{}'{}", what, shown(path),
                            near.empty() ? "" : fmt::format("; did you mean '{}'?", near)),
                path, "name modules and tensors as named_modules and named_parameters do");
}

void check_map(const ModuleTree& tree, const DeviceMap& map) {
  std::vector<std::string> paths = all_paths(tree);
  std::sort(paths.begin(), paths.end());
  for (const auto& entry : map.entries())
    if (!std::binary_search(paths.begin(), paths.end(), entry.first))
      check_path(tree, entry.first, "the device map");
  check_complete(tree, map);
  check_ties(tree, map);
}

void check_largest_layer(const ModuleTree& tree, const TreeSizes& sizes, const MaxMemory& memory,
                         const std::vector<std::string>& no_split) {
  uint64_t most = 0;
  for (const auto& [device, bytes] : memory.devices())
    if (!device.is_disk()) most = std::max(most, bytes);
  const auto top = top_level(tree);
  const LargestLayers largest = largest_layers(tree, sizes, no_split, {top.begin(), top.end()});
  const auto bytes = static_cast<uint64_t>((largest.bits + 7) / 8);
  if (bytes <= most) return;
  refuse_size(tree.name(largest.layers.front()), bytes, most);
}

void refuse_size(const std::string& name, uint64_t bytes, uint64_t most) {
  fail_argument(
      fmt::format("'{}' takes {} ({} bytes), and no device may hold more than {} ({} bytes)", name,
                  format_byte_size(bytes), bytes, format_byte_size(most), most),
      name,
      "give an accelerator or \"cpu\" more in max_memory, use a smaller dtype, or remove its class "
      "from no_split_module_classes");
}

}  // namespace coupler
