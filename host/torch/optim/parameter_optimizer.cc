#include "optim/parameter_optimizer.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

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

}  // namespace

ParameterOptimizer::ParameterOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups,
                                       std::unique_ptr<ParameterOptions> defaults)
    : Optimizer(std::move(groups), std::move(defaults)) {
  for (size_t i = 0; i < param_groups().size(); ++i) {
    const auto* options = dynamic_cast<ParameterOptions*>(&param_groups()[i].options());
    const std::string problem =
        options == nullptr ? "its options are another optimizer's" : options->problem();
    if (problem.empty()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("parameter group {} of the optimizer: {}", i, problem),
                {.hint = "correct its options"});
  }
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
