// OffloadedTensors: a device's tensors kept in host memory until backward needs them. Each object
// knows the thread's previous one, which backward needs next, and fetches its tensors ahead.
// Filled by one thread, then brought back by one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <vector>

#include "activations/host_copy.h"
#include "empty_weights/recipe.h"

namespace coupler {

class OffloadedTensors {
 public:
  // Creates an object that follows the last one this thread made.
  static std::shared_ptr<OffloadedTensors> make();

  // Adds a dense tensor with values, on a device. Its copy is in flight when this returns; the
  // tensor itself is not kept. Returns its number, counting from 0.
  size_t add(const at::Tensor& tensor);

  // Returns all tensors on their device, without graph, with their strides, sharing memory as
  // before, and starts fetching those of the previous object. May be called repeatedly.
  std::vector<at::Tensor> bring_back();
  // Drops the tensors.
  void forget();

 private:
  struct Tensor {
    Place place;
    c10::DispatchKey key;
    bool intercepted = false;  // belongs to a model spread over several devices
    std::shared_ptr<HostCopy> copy;
  };
  // Starts fetching; the memory is kept until bring_back takes it.
  void fetch();
  void fetch_locked();

  std::weak_ptr<OffloadedTensors> before_;
  std::mutex mutex_;
  std::vector<Tensor> tensors_;
  std::vector<c10::Storage> fetched_;  // by tensor
};

}  // namespace coupler
