// The state that optimizers of torch::optim keep themselves, and their options, by name. Plain
// functions, of the thread that trains.
#pragma once

#include <torch/optim/optimizer.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "optim/parameter_state.h"

namespace coupler {

// "AdamW"; a class that is not torch's by its full name.
std::string optimizer_type(const torch::optim::Optimizer& optimizer);

// Empty where the optimizer remembers nothing of the variable. Throws Error(kUnsupported) naming
// the optimizer where its kind of state is not known (LBFGS, and classes that are not torch's).
ParameterState torch_state_of(torch::optim::Optimizer& optimizer, const at::Tensor& held);

// Makes the optimizer remember so many steps and tensors of these names, of zeros, to be written
// to. Throws as above, and Error(kInvalidArgument) for a name that its state does not have.
ParameterState make_torch_state(torch::optim::Optimizer& optimizer, const at::Tensor& held,
                                int64_t steps, const std::vector<std::string>& names);

// The options of a parameter group as a JSON object: {"lr": 0.001, "betas": [0.9, 0.999], …}.
// Throws Error(kUnsupported) as above.
nlohmann::json options_of(const torch::optim::Optimizer& optimizer,
                          const torch::optim::OptimizerOptions& options);
// Sets them. Throws Error(kInvalidArgument) naming the option that is missing or no number; nothing
// is changed then.
void set_options(const torch::optim::Optimizer& optimizer, torch::optim::OptimizerOptions& options,
                 const nlohmann::json& values);

}  // namespace coupler
