#include "activations/offloaded_tensors.h"

#include <utility>

#include "residency/intercept.h"

namespace coupler {

std::shared_ptr<OffloadedTensors> OffloadedTensors::make() {
  static thread_local std::weak_ptr<OffloadedTensors> last;
  auto result = std::make_shared<OffloadedTensors>();
  result->before_ = std::exchange(last, result);
  return result;
}

size_t OffloadedTensors::add(const at::Tensor& tensor) {
  auto copy = HostCopy::of(tensor);
  Place place = geometry_of(tensor);
  place.offset -= copy->range().begin / static_cast<int64_t>(tensor.element_size());
  const c10::DispatchKey key =
      c10::computeDispatchKey(tensor.scalar_type(), at::kStrided, tensor.device());
  const std::lock_guard lock(mutex_);
  tensors_.push_back({std::move(place), key, has_intercept(tensor), std::move(copy)});
  return tensors_.size() - 1;
}

void OffloadedTensors::fetch_locked() {
  if (!fetched_.empty()) return;
  for (const Tensor& tensor : tensors_) fetched_.push_back(tensor.copy->bring_back());
}

void OffloadedTensors::fetch() {
  const std::lock_guard lock(mutex_);
  fetch_locked();
}

std::vector<at::Tensor> OffloadedTensors::bring_back() {
  std::vector<at::Tensor> result;
  {
    const std::lock_guard lock(mutex_);
    fetch_locked();
    const std::vector<c10::Storage> memory = std::exchange(fetched_, {});
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].copy->await(memory[i]);
      result.push_back(tensor_on(memory[i], tensors_[i].place, tensors_[i].key));
      if (tensors_[i].intercepted) put_intercept(result.back());
    }
  }
  if (const auto before = before_.lock()) before->fetch();
  return result;
}

void OffloadedTensors::forget() {
  const std::lock_guard lock(mutex_);
  fetched_.clear();
  tensors_.clear();
}

}  // namespace coupler
