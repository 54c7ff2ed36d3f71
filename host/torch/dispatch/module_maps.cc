// coupler/device_map.h for LibTorch modules: describes them and calls the LibTorch-free code.
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <coupler/device_map.h>
#include <torch/cuda.h>

#include "dispatch/describe_module.h"
#include "placement/balanced.h"
#include "placement/check_map.h"
#include "placement/infer.h"
#include "placement/optimal.h"
#include "placement/table.h"

namespace coupler {
namespace {

MaxMemory machine_memory() {
  std::vector<std::pair<int, uint64_t>> accelerators;
  const int count = torch::cuda::device_count();
  if (count > 0) at::globalContext().lazyInitDevice(at::kCUDA);
  for (int i = 0; i < count; ++i)
    accelerators.emplace_back(
        i,
        c10::getDeviceAllocator(at::kCUDA)->getMemoryInfo(static_cast<c10::DeviceIndex>(i)).first);
  return get_max_memory(accelerators);
}

// Fills in max_memory if the caller left it empty.
DeviceMapOptions filled(DeviceMapOptions options) {
  if (!options.max_memory.empty()) return options;
  options.max_memory = machine_memory();
  const bool single = options.max_memory.devices().size() == 2;  // and the CPU
  const auto first = options.max_memory.devices().begin();
  // Running the model needs memory in addition to the weights.
  if (single && options.mode != "sequential")
    options.max_memory.set(first->first, first->second / 10 * 9);
  return options;
}

}  // namespace

DeviceMap infer_auto_device_map(const torch::nn::Module& model, const DeviceMapOptions& options) {
  return infer_device_map(describe_module(model), filled(options));
}

MaxMemory get_balanced_memory(const torch::nn::Module& model, const DeviceMapOptions& options,
                              bool low_zero) {
  const ModuleTree tree = describe_module(model);
  const TreeSizes sizes(tree, {options.dtype, options.special_dtypes});
  DeviceMapOptions balanced = options;
  balanced.mode = "balanced";
  return balanced_memory(tree, sizes, filled(balanced).max_memory, options.no_split_module_classes,
                         low_zero);
}

void check_device_map(const torch::nn::Module& model, const DeviceMap& map) {
  check_map(describe_module(model), map);
}

PredictedRun predict_run(const torch::nn::Module& model, const DeviceMap& map,
                         const DeviceMapOptions& options) {
  return predicted_run(describe_module(model), map, filled(options));
}

std::string to_table(const torch::nn::Module& model, const DeviceMap& map,
                     const DeviceMapOptions& options) {
  return table_of(describe_module(model), map, options);
}

}  // namespace coupler
