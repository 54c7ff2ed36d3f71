// OffloadedTensors: tensors of a device that wait in host memory until backward needs them. Those
// of one thread know the ones made before them, which backward needs next, and fetch them ahead.
// Filled by one thread, then brought back by one at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <vector>

#include "offload/host_copy.h"
#include "residency/recipe.h"

namespace coupler {

class OffloadedTensors {
 public:
  // After those that this thread has made last.
  static std::shared_ptr<OffloadedTensors> make();

  // A dense tensor with values, on a device. Its copy is on its way when this returns; the tensor
  // itself is not kept. Returns its number, from 0 on.
  size_t add(const at::Tensor& tensor);

  // All of them on their device, without graph, with their strides, on common memory where they
  // had such; then those before them are on their way. As often as one likes.
  std::vector<at::Tensor> bring_back();
  // They are not needed any more.
  void forget();

 private:
  struct Tensor {
    Place place;
    c10::DispatchKey key;
    bool intercepted = false;  // of a model that lies on several devices
    std::shared_ptr<HostCopy> copy;
  };
  // Begins; the memory is kept until bring_back takes it.
  void fetch();
  void fetch_locked();

  std::weak_ptr<OffloadedTensors> before_;
  std::mutex mutex_;
  std::vector<Tensor> tensors_;
  std::vector<c10::Storage> fetched_;  // by tensor
};

}  // namespace coupler
