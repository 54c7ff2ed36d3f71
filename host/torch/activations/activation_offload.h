// ActivationOffload: the setting memory.offload_activations, and which of the tensors that
// activation checkpointing keeps are worth moving to host memory. One per process; [any-thread].
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "strategy/model.h"

namespace coupler {

class ActivationOffload {
 public:
  static ActivationOffload& of_process();

  void set_default(bool on) { on_ = on; }
  bool is_default() const { return on_; }

  // A model's parameters and buffers are not moved: they stay on the device in any case.
  void leave_in_place(const Model& model);
  void forget_all();

  // Whether the tensor is on a device other than the CPU and kept there for backward only.
  bool moves(const at::Tensor& tensor) const;

  // Logs, once per process, that there is nothing to move.
  void say_nothing_moves();

 private:
  std::atomic<bool> on_ = false, said_ = false;
  mutable std::mutex mutex_;
  std::vector<at::Tensor> in_place_;
};

}  // namespace coupler
