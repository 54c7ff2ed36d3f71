#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "placement/device_map.h"
#include "placement/optimal.h"
#include "placement/sequential.h"

namespace coupler::placement {
namespace {

void check_mode(const std::string& mode) {
  const std::vector<std::string> known = {"auto", "balanced", "balanced_low_0", "sequential",
                                          "optimal"};
  if (std::find(known.begin(), known.end(), mode) != known.end()) return;
  fail_argument(
      fmt::format("unknown device map mode '{}'{}", for_message(mode), did_you_mean(mode, known)),
      "mode", "give auto, balanced, balanced_low_0, sequential or optimal");
}

void check_largest_layer(const ModuleTree& tree, const TreeSizes& sizes, const MaxMemory& memory,
                         const std::vector<std::string>& no_split) {
  const auto top = top_level(tree);
  const LargestLayers largest = largest_layers(tree, sizes, no_split, {top.begin(), top.end()});
  if (largest.bits > 0)
    check_size(tree.name(largest.layers.front()), static_cast<uint64_t>((largest.bits + 7) / 8),
               memory);
}

// Buffers of offloaded modules are where these run, and may need more memory than is left there.
void warn_of_buffers(const ModuleTree& tree, const TreeSizes& sizes, const DeviceMap& map,
                     const MaxMemory& memory) {
  uint64_t buffers = 0;
  std::map<MapDevice, uint64_t> used;
  for (size_t t = 0; t < tree.tensors.size(); ++t) {
    if (sizes.owner(t) != t) continue;
    const MapDevice device = *map.device_of(tree.tensors[t].name);
    used[device] += sizes.bytes(t);
    if (!device.is_accelerator() && !tree.tensors[t].parameter()) buffers += sizes.bytes(t);
  }
  bool accelerators = false;
  for (const auto& [device, bytes] : memory.devices()) {
    accelerators = accelerators || device.is_accelerator();
    if (device.is_accelerator() && bytes >= used[device] + buffers) return;
  }
  if (buffers == 0 || !accelerators || !log_enabled(LogLevel::kWarning, "placement")) return;
  log(LogLevel::kWarning, "placement",
      fmt::format("the buffers of offloaded modules, {} bytes, do not fit on any accelerator next "
                  "to its weights; set offload_buffers to offload them, too",
                  buffers));
}

}  // namespace

DeviceMap infer_device_map(const ModuleTree& tree, const DeviceMapOptions& options) {
  check_mode(options.mode);
  const auto& no_split = options.no_split_module_classes;
  const TreeSizes sizes(tree, options);
  if (options.mode == "optimal") {
    DeviceMap map = optimal_map(tree, sizes, options);
    check_map(tree, map);
    return map;
  }
  check_largest_layer(tree, sizes, options.max_memory, no_split);
  const MaxMemory memory = options.mode == "sequential"
                               ? options.max_memory
                               : balanced_memory(tree, sizes, options.max_memory, no_split,
                                                 options.mode == "balanced_low_0");
  DeviceMap map = finished_map(
      tree, sizes, place_sequentially(tree, sizes, memory, {no_split, options.fallback_allocation}),
      options.clean_result);
  check_map(tree, map);
  if (!options.offload_buffers) warn_of_buffers(tree, sizes, map, options.max_memory);
  return map;
}

}  // namespace coupler::placement
