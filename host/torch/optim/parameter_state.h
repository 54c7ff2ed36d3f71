// ParameterState: an optimizer's state for one variable that it holds, for any kind of optimizer.
// Plain data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace coupler {

struct ParameterState {
  int64_t steps = 0;  // 0: not part of any step yet
  // Named as in torch::optim ("exp_avg"), with as many elements as the variable; they share the
  // optimizer's memory.
  std::vector<std::pair<std::string, at::Tensor>> tensors;
};

// StepState: the loop's position in gradient accumulation, which decides whether an optimizer's
// step and zero_grad act. Owned by the Accelerator; used by the training thread.
struct StepState {
  bool sync = true;               // gradients are averaged in this scope; true outside one
  uint64_t scope = 0;             // the number of the accumulate() scope; 0 outside one
  bool first_of_window = true;    // no earlier batch is accumulated
  bool backward_of_only = false;  // backward has run in this scope, which has one model
};

}  // namespace coupler
