#include "dispatch/describe_module.h"

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <map>
#include <tuple>

namespace coupler {
namespace {

class Describer {
 public:
  explicit Describer(const torch::nn::Module& root) : tree_(root.name()) { fill(0, root); }

  ModuleTree take() { return std::move(tree_); }

 private:
  void fill(size_t index, const torch::nn::Module& module) {
    for (const auto& item : module.named_parameters(/*recurse=*/false))
      add(index, item.key(), item.value(), TensorKind::kParameter);
    for (const auto& item : module.named_buffers(/*recurse=*/false))
      add(index, item.key(), item.value(), TensorKind::kBuffer);
    for (const auto& item : module.named_children()) {
      const torch::nn::Module& child = *item.value();
      const uint64_t object = objects_.emplace(&child, objects_.size() + 1).first->second;
      fill(tree_.add_module(index, item.key(), child.name(), object), child);
    }
  }

  void add(size_t module, const std::string& name, const at::Tensor& tensor, TensorKind kind) {
    if (!tensor.defined()) return;
    const std::string type(c10::getDtypeNames(tensor.scalar_type()).first);
    tree_.add_tensor(module, {.name = name,
                              .elements = static_cast<uint64_t>(tensor.numel()),
                              .type = &tensor_type(type, tree_.modules[module].name + "." + name),
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

  ModuleTree tree_;
  std::map<const torch::nn::Module*, uint64_t> objects_;
  std::map<Place, uint64_t> storages_;
};

}  // namespace

ModuleTree describe_module(const torch::nn::Module& model) { return Describer(model).take(); }

}  // namespace coupler
