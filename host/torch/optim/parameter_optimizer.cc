#include "optim/parameter_optimizer.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <typeinfo>
#include <utility>
#include <variant>

#include "optim/torch_state.h"

namespace coupler {
namespace {

using optim::NamedState;

ParameterOptimizer::Piece piece_of(const at::Tensor& parameter, const NamedState& state) {
  ParameterOptimizer::Piece piece{.parameter = parameter, .step = state.steps};
  for (const auto& [name, tensor] : state.tensors) piece.state.push_back(tensor);
  return piece;
}

ParameterOptions& options_of_group(torch::optim::OptimizerParamGroup& group) {
  return dynamic_cast<ParameterOptions&>(group.options());
}

// A group's options, of which those with their initial values become the optimizer's: Python's
// groups inherit what they do not name, and LibTorch's own optimizers from 2.15 on do so.
std::unique_ptr<torch::optim::OptimizerOptions> inherit(const ParameterOptions& given,
                                                        ParameterOptions& defaults) {
  auto result = given.clone();
  const auto initial = given.initial();
  const auto values = dynamic_cast<ParameterOptions&>(*result).named();
  const auto initial_values = initial->named(), default_values = defaults.named();
  for (size_t i = 0; i < values.size(); ++i) {
    std::visit(
        [&](auto* value) {
          using Pointer = decltype(value);
          if (*value == *std::get<Pointer>(initial_values[i].second))
            *value = *std::get<Pointer>(default_values[i].second);
        },
        values[i].second);
  }
  return result;
}

}  // namespace

ParameterOptimizer::ParameterOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                       std::unique_ptr<ParameterOptions> defaults)
    : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{}, std::move(defaults)) {
  for (const auto& group : groups) add_param_group(group);
}

void ParameterOptimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  auto& own = dynamic_cast<ParameterOptions&>(defaults());
  // LibTorch's own add_param_group loses the options of classes that it does not know.
  std::unique_ptr<torch::optim::OptimizerOptions> options = own.clone();
  std::string problem;
  if (group.has_options()) {
    const torch::optim::OptimizerOptions& given = group.options();
    if (typeid(given) == typeid(own))
      options = inherit(dynamic_cast<const ParameterOptions&>(given), own);
    else
      problem = "its options are another optimizer's";
  }
  if (problem.empty()) problem = dynamic_cast<ParameterOptions&>(*options).problem();
  if (!problem.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("parameter group {} of the optimizer: {}", param_groups().size(), problem),
        {.hint = "correct its options"});
  }
  Optimizer::add_param_group(torch::optim::OptimizerParamGroup(group.params()));
  param_groups().back().set_options(std::move(options));
}

std::vector<int64_t> ParameterOptimizer::state_shape(const std::string&,
                                                     const at::Tensor& parameter) const {
  return parameter.sizes().vec();
}

void ParameterOptimizer::switch_mode(const std::vector<Piece>&, ParameterOptions&, bool) const {}

at::Tensor ParameterOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  for (auto& group : param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = this->state()[parameter.unsafeGetTensorImpl()];
      if (state == nullptr) state = optim::new_state(*this, parameter);
      auto& named = dynamic_cast<NamedState&>(*state);
      ++named.steps;
      Piece piece = piece_of(parameter, named);
      piece.gradient = parameter.grad();
      update(piece, options_of_group(group));
    }
  }
  return loss;
}

void ParameterOptimizer::set_mode(bool training) {
  const at::NoGradGuard no_grad;
  for (auto& group : param_groups()) {
    std::vector<Piece> pieces;
    for (const at::Tensor& parameter : group.params()) {
      const auto found = state().find(parameter.unsafeGetTensorImpl());
      if (found != state().end())
        pieces.push_back(piece_of(parameter, dynamic_cast<NamedState&>(*found->second)));
    }
    switch_mode(pieces, options_of_group(group), training);
  }
}

namespace optim {

void add_param_group(torch::optim::Optimizer& optimizer,
                     const torch::optim::OptimizerParamGroup& group) {
  // torch::optim::Optimizer's is not virtual.
  if (auto* own = dynamic_cast<ParameterOptimizer*>(&optimizer)) {
    own->add_param_group(group);
  } else {
    optimizer.add_param_group(group);
  }
}

std::unique_ptr<torch::optim::OptimizerParamState> NamedState::clone() const {
  return std::make_unique<NamedState>(*this);
}

std::unique_ptr<NamedState> new_state(const ParameterOptimizer& optimizer,
                                      const at::Tensor& parameter) {
  auto state = std::make_unique<NamedState>();
  for (const std::string& name : optimizer.state_names()) {
    state->tensors.emplace_back(name, at::zeros(optimizer.state_shape(name, parameter),
                                                parameter.options().requires_grad(false)));
  }
  return state;
}

StateDict states_of(ParameterOptimizer& optimizer) {
  StateDict result;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& parameters = optimizer.param_groups()[g].params();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const auto found = optimizer.state().find(parameters[p].unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      const auto& state = dynamic_cast<NamedState&>(*found->second);
      result.set(fmt::format("{}/{}/steps", g, p), state.steps);
      for (const auto& [name, tensor] : state.tensors)
        result.set(fmt::format("{}/{}/{}", g, p, name), tensor);
    }
  }
  return result;
}

void set_states(ParameterOptimizer& optimizer, const StateDict& saved) {
  std::vector<std::pair<void*, std::unique_ptr<NamedState>>> states;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& parameters = optimizer.param_groups()[g].params();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const std::string place = fmt::format("{}/{}/", g, p);
      if (!saved.has(place + "steps")) continue;
      auto state = new_state(optimizer, parameters[p]);
      state->steps = saved.integer(place + "steps");
      for (auto& [name, tensor] : state->tensors) {
        const at::Tensor& values = saved.tensor(place + name);
        if (values.sizes() != tensor.sizes())
          throw Error(ErrorCode::kInvalidArgument,
                      fmt::format("the state '{}' of {} has shape [{}], but must have [{}]",
                                  place + name, optimizer_type(optimizer),
                                  fmt::join(values.sizes(), ", "), fmt::join(tensor.sizes(), ", ")),
                      {.subject = name, .hint = "resume with the parameters that were saved"});
        tensor = values.to(tensor.options());
      }
      states.emplace_back(parameters[p].unsafeGetTensorImpl(), std::move(state));
    }
  }
  optimizer.state().clear();
  for (auto& [parameter, state] : states) optimizer.state()[parameter] = std::move(state);
}

}  // namespace optim
}  // namespace coupler
