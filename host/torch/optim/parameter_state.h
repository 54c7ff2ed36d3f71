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

}  // namespace coupler
