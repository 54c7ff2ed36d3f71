// coupler/device_map.h for LibTorch modules: describes them and calls the LibTorch-free code.
#include "big_model/module_maps.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/ScalarType.h>
#include <coupler/device_map.h>
#include <torch/cuda.h>
#include <torch/nn/module.h>

#include <map>
#include <tuple>

#include "placement/device_map.h"
#include "placement/optimal.h"
#include "placement/sequential.h"

namespace coupler {
namespace {

class Describer {
 public:
  explicit Describer(const torch::nn::Module& root) : tree_(root.name()) { fill(0, root); }

  placement::ModuleTree take() { return std::move(tree_); }

 private:
  void fill(size_t index, const torch::nn::Module& module) {
    for (const auto& item : module.named_parameters(/*recurse=*/false))
      add(index, item.key(), item.value(), placement::TensorKind::kParameter);
    for (const auto& item : module.named_buffers(/*recurse=*/false))
      add(index, item.key(), item.value(), placement::TensorKind::kBuffer);
    for (const auto& item : module.named_children()) {
      const torch::nn::Module& child = *item.value();
      const uint64_t object = objects_.emplace(&child, objects_.size() + 1).first->second;
      fill(tree_.add_module(index, item.key(), child.name(), object), child);
    }
  }

  void add(size_t module, const std::string& name, const at::Tensor& tensor,
           placement::TensorKind kind) {
    if (!tensor.defined()) return;
    const std::string type(c10::getDtypeNames(tensor.scalar_type()).first);
    tree_.add_tensor(
        module, {.name = name,
                 .elements = static_cast<uint64_t>(tensor.numel()),
                 .type = &placement::tensor_type(type, tree_.modules[module].name + "." + name),
                 .kind = kind,
                 .storage = storage_of(tensor)});
  }

  // Identifies a tensor by its handle if it has no storage, such as a sparse tensor.
  using Place = std::tuple<const void*, int64_t, std::vector<int64_t>, std::vector<int64_t>>;
  uint64_t storage_of(const at::Tensor& tensor) {
    const Place place =
        tensor.has_storage()
            ? Place(tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(),
                    tensor.sizes().vec(), tensor.strides().vec())
            : Place(tensor.unsafeGetTensorImpl(), 0, tensor.sizes().vec(), {});
    return storages_.emplace(place, storages_.size()).first->second;
  }

  placement::ModuleTree tree_;
  std::map<const torch::nn::Module*, uint64_t> objects_;
  std::map<Place, uint64_t> storages_;
};

}  // namespace

placement::ModuleTree big_model::describe_module(const torch::nn::Module& model) {
  return Describer(model).take();
}

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
  return placement::infer_device_map(big_model::describe_module(model), filled(options));
}

MaxMemory get_balanced_memory(const torch::nn::Module& model, const DeviceMapOptions& options,
                              bool low_zero) {
  const placement::ModuleTree tree = big_model::describe_module(model);
  const placement::TreeSizes sizes(tree, options);
  DeviceMapOptions balanced = options;
  balanced.mode = "balanced";
  return balanced_memory(tree, sizes, filled(balanced).max_memory, options.no_split_module_classes,
                         low_zero);
}

void check_device_map(const torch::nn::Module& model, const DeviceMap& map) {
  placement::check_map(big_model::describe_module(model), map);
}

PredictedRun predict_run(const torch::nn::Module& model, const DeviceMap& map,
                         const DeviceMapOptions& options) {
  return placement::predicted_run(big_model::describe_module(model), map, filled(options));
}

std::string to_table(const torch::nn::Module& model, const DeviceMap& map,
                     const DeviceMapOptions& options) {
  return table_of(big_model::describe_module(model), map, options);
}

}  // namespace coupler
