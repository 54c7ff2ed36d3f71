// ActivationOffload: what memory.offload_activations says, and which tensors that activation
// checkpointing keeps are worth a place in host memory. One a process; [any-thread].
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

  // A model's parameters and buffers stay where they are: they are there anyway.
  void leave_in_place(const Model& model);
  void forget_all();

  // Whether it is on another device than the CPU, and there for the sake of backward only.
  bool moves(const at::Tensor& tensor) const;

  // Once in a process: that there is nothing on another device.
  void say_nothing_moves();

 private:
  std::atomic<bool> on_ = false, said_ = false;
  mutable std::mutex mutex_;
  std::vector<at::Tensor> in_place_;
};

}  // namespace coupler
