// What the host does with a ParameterOptimizer (coupler/optimizers.h): the state of one that runs
// over whole parameters. Used by the training thread.
#pragma once

#include <coupler/optimizers.h>
#include <coupler/state_dict.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace coupler::optim {

// optimizer.add_param_group, of whatever class it is.
void add_param_group(torch::optim::Optimizer& optimizer,
                     const torch::optim::OptimizerParamGroup& group);

// In torch's map of states, by parameter.
struct NamedState final : torch::optim::OptimizerParamState {
  int64_t steps = 0;
  std::vector<std::pair<std::string, at::Tensor>> tensors;

  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override;
};

// Zeros for the parameter.
std::unique_ptr<NamedState> new_state(const ParameterOptimizer& optimizer,
                                      const at::Tensor& parameter);

// The state of all parameters, by group and place in it, for an optimizer of whole matrices: its
// tensors may have other shapes than the parameters. Shares the optimizer's memory.
StateDict states_of(ParameterOptimizer& optimizer);
// Replaces it. Throws Error(kInvalidArgument) if a tensor is missing or has another shape than the
// optimizer's own; the optimizer then keeps its state.
void set_states(ParameterOptimizer& optimizer, const StateDict& saved);

}  // namespace coupler::optim
