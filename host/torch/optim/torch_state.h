// ParameterState: an optimizer's state for one variable, by name; and functions for the state that
// torch::optim optimizers keep themselves, and for their options. Used by the training thread.
#pragma once

#include <coupler/state_dict.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace coupler::optim {

// For any kind of optimizer. Plain data.
struct ParameterState {
  int64_t steps = 0;  // 0: not part of any step yet
  // Named as in torch::optim ("exp_avg"), with as many elements as the variable; they share the
  // optimizer's memory.
  std::vector<std::pair<std::string, at::Tensor>> tensors;
};

// For example "AdamW"; the full name for a class that is not torch's.
std::string optimizer_type(const torch::optim::Optimizer& optimizer);

// Empty if the optimizer has no state for the variable. Throws Error(kUnsupported) naming the
// optimizer if its kind of state is not known (classes that are not torch's), or is of all
// variables together.
ParameterState torch_state_of(torch::optim::Optimizer& optimizer, const at::Tensor& held);

// Sets the variable's step count and creates state tensors of these names, filled with zeros, for
// the caller to write to. Throws as above, and Error(kInvalidArgument) for an unknown name.
ParameterState make_torch_state(torch::optim::Optimizer& optimizer, const at::Tensor& held,
                                int64_t steps, const std::vector<std::string>& names);

// Whether its state is of all its variables together: LBFGS, and optimizers of whole matrices.
bool has_whole_state(const torch::optim::Optimizer& optimizer);
// That state, for such an optimizer; empty before its first step. Shares the optimizer's memory.
StateDict whole_state_of(torch::optim::Optimizer& optimizer);
// Replaces it. Throws Error(kInvalidArgument) if the state is incomplete or of another number of
// elements; the optimizer then keeps its own.
void set_whole_state(torch::optim::Optimizer& optimizer, const StateDict& state);

// The options of a parameter group as a JSON object: {"lr": 0.001, "betas": [0.9, 0.999], …}.
// Throws Error(kUnsupported) as above.
nlohmann::json options_of(const torch::optim::Optimizer& optimizer,
                          const torch::optim::OptimizerOptions& options);
// Sets them. If an option is missing or has the wrong type, throws Error(kInvalidArgument) naming
// it and changes nothing.
void set_options(const torch::optim::Optimizer& optimizer, torch::optim::OptimizerOptions& options,
                 const nlohmann::json& values);

}  // namespace coupler::optim
