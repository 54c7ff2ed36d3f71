// ParameterState: what an optimizer remembers of one variable that it holds, whatever its kind.
// Plain data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace coupler {

struct ParameterState {
  int64_t steps = 0;  // 0: it has not taken part in any yet
  // As torch::optim calls them ("exp_avg"), as many elements as the variable; the optimizer's own
  // memory.
  std::vector<std::pair<std::string, at::Tensor>> tensors;
};

}  // namespace coupler
