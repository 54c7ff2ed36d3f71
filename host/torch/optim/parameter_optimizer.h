// What the host does with a ParameterOptimizer (coupler/optimizers.h): the state of one that runs
// over whole parameters. Used by the training thread.
#pragma once

#include <coupler/optimizers.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace coupler::optim {

// In torch's map of states, by parameter.
struct NamedState final : torch::optim::OptimizerParamState {
  int64_t steps = 0;
  std::vector<std::pair<std::string, at::Tensor>> tensors;

  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override;
};

// Zeros for the parameter.
std::unique_ptr<NamedState> new_state(const ParameterOptimizer& optimizer,
                                      const at::Tensor& parameter);

}  // namespace coupler::optim
