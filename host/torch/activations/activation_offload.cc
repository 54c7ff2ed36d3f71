#include "activations/activation_offload.h"

#include <algorithm>

#include "base/log.h"
#include "residency/intercept.h"

namespace coupler {
namespace {

// A trained tensor that is not computed is a parameter, whatever module owns it.
bool is_parameter(const at::TensorBase& tensor) {
  return tensor.requires_grad() && tensor.is_leaf();
}

}  // namespace

ActivationOffload& ActivationOffload::of_process() {
  // Never destroyed: LibTorch threads may still use it.
  static auto* const kTheOne = new ActivationOffload;
  return *kTheOne;
}

void ActivationOffload::leave_in_place(const Model& model) {
  const std::lock_guard lock(mutex_);
  for (const ModelParameter& parameter : model.parameters) in_place_.push_back(parameter.tensor);
  for (const auto& [name, buffer] : model.buffers) in_place_.push_back(buffer);
}

void ActivationOffload::forget_all() {
  const std::lock_guard lock(mutex_);
  in_place_.clear();
}

bool ActivationOffload::moves(const at::Tensor& tensor) const {
  if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) return false;
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.numel() == 0) return false;
  if (home_of(tensor) != nullptr || is_parameter(tensor)) return false;
  if (tensor.is_view() && is_parameter(tensor._base())) return false;
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->data() == nullptr) return false;
  const std::lock_guard lock(mutex_);
  return std::none_of(in_place_.begin(), in_place_.end(), [&](const at::Tensor& known) {
    return known.has_storage() && known.storage().unsafeGetStorageImpl() == storage;
  });
}

void ActivationOffload::say_nothing_moves() {
  if (said_.exchange(true)) return;
  log(LogLevel::kInfo, "train",
      "activations are already in host memory: there is nothing to offload");
}

}  // namespace coupler
