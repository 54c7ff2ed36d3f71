// Journey: an operation of a model that lies on several devices. What it takes is brought to the
// device it runs on; what it gives is marked, so that an operation on it comes through the
// intercept too and finds its other arguments there, wherever the program has them from.
//
// Stands on the stack of the intercept, below whose key it works; [any-thread].
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <utility>

namespace coupler {

class Journey {
 public:
  // runs_on: the device of the parameters among the arguments; unset where none of them has one.
  // Where there are no parameters (`only_travellers`) the operation runs where the last one with
  // parameters did, if one of its arguments is there, else where the first is that is not on the
  // CPU.
  Journey(const c10::OperatorHandle& op, torch::jit::Stack& stack,
          std::optional<c10::Device> runs_on, bool only_travellers);
  Journey(const Journey&) = delete;
  Journey& operator=(const Journey&) = delete;

  // After the operation: what it wrote goes back to where the program has it, results are marked.
  void arrive(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;

 private:
  void bring(c10::IValue& value, bool writes);
  at::Tensor brought(const at::Tensor& tensor, bool writes);

  std::optional<c10::Device> device_;
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 2> written_;  // the program's, and ours
};

}  // namespace coupler
