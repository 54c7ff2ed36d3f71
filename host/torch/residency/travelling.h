// Journey: one operation of a model spread over several devices. Moves its arguments to the device
// it runs on and marks its results, so that operations on them also come through the intercept,
// which moves their other arguments, whatever device the program has them on.
//
// Lives on the intercept's stack and works below its dispatch key; [any-thread].
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
  // runs_on: the device of the parameters among the arguments; unset if none of them has one.
  // Without parameters (`only_travellers`), the operation runs where the last one with parameters
  // did, if one of its arguments is there; otherwise where the first argument outside the CPU is.
  Journey(const c10::OperatorHandle& op, torch::jit::Stack& stack,
          std::optional<c10::Device> runs_on, bool only_travellers);
  Journey(const Journey&) = delete;
  Journey& operator=(const Journey&) = delete;

  // Call after the operation: copies written arguments back to the program's tensors and marks
  // results for the intercept.
  void arrive(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;

 private:
  void bring(c10::IValue& value, bool writes);
  at::Tensor brought(const at::Tensor& tensor, bool writes);

  std::optional<c10::Device> device_;
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 2> written_;  // the program's, and ours
};

}  // namespace coupler
