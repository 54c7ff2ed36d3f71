// PlanErrors: explains the errors of a module that a plan breaks. What a colwise layer makes has a
// part of the outputs; an operation that needs all of them, such as a residual or a layer that no
// line names, fails with sizes that the program does not have. In the layer's first forward this
// follows its results through other operations, and names the layer and the line of the plan.
//
// On the thread of the forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "residency/parameter_hooks.h"

namespace coupler::tensor_parallel {

class PlanErrors : public residency::ParameterHook,
                   public std::enable_shared_from_this<PlanErrors> {
 public:
  // layer: its name; line: of the plan; ranks: of the group; outputs: of the layer on each.
  PlanErrors(std::string layer, std::string line, int ranks, int64_t outputs);

  // Watches what is made of this result while `errors` lives.
  static void watch(const at::Tensor& result, const std::shared_ptr<PlanErrors>& errors);

  void around(const c10::OperatorHandle& op, torch::jit::Stack& stack,
              const std::function<void()>& run) override;

 private:
  [[noreturn]] void explain(const c10::OperatorHandle& op, const c10::Error& error) const;

  const std::string layer_, line_;
  const int ranks_;
  const int64_t outputs_;
};

}  // namespace coupler::tensor_parallel
