#include "optim/torch_state.h"

#include <ATen/Functions.h>
#include <c10/util/Type.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <typeinfo>
#include <variant>

#include "optim/parameter_optimizer.h"

namespace coupler::optim {
namespace {

using nlohmann::json;

[[noreturn]] void refuse_optimizer(const torch::optim::Optimizer& optimizer) {
  const std::string type = optimizer_type(optimizer);
  throw Error(ErrorCode::kUnsupported,
              fmt::format("the state of the optimizer {} cannot be saved: only those of SGD, Adam, "
                          "AdamW, RMSprop, Adagrad and Coupler's own optimizers are supported",
                          type),
              {.subject = type, .hint = "use one of these if the job is to be resumed"});
}

// ---- State: its tensors visited by name ----

template <class State, class Visit>
int64_t* show_averages(State& state, const Visit& visit) {
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
  visit("max_exp_avg_sq", state.max_exp_avg_sq());
  return &state.step();
}

// Returns the step count; null if it is not kept (SGD). Unset if the kind is not known.
template <class Visit>
std::optional<int64_t*> show_state(torch::optim::OptimizerParamState& base, const Visit& visit) {
  if (auto* named = dynamic_cast<NamedState*>(&base)) {
    for (auto& [name, tensor] : named->tensors) visit(name.c_str(), tensor);
    return &named->steps;
  }
  if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(&base)) {
    visit("momentum_buffer", sgd->momentum_buffer());
    return nullptr;
  }
  if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&base)) {
    return show_averages(*adam, visit);
  }
  if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(&base)) {
    return show_averages(*adamw, visit);
  }
  if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropParamState*>(&base)) {
    visit("square_avg", rmsprop->square_avg());
    visit("momentum_buffer", rmsprop->momentum_buffer());
    visit("grad_avg", rmsprop->grad_avg());
    return &rmsprop->step();
  }
  if (auto* adagrad = dynamic_cast<torch::optim::AdagradParamState*>(&base)) {
    visit("sum", adagrad->sum());
    return &adagrad->step();
  }
  return std::nullopt;
}

// Without tensors; null if the kind is not known.
std::unique_ptr<torch::optim::OptimizerParamState> empty_state(
    const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr) {
    return std::make_unique<torch::optim::SGDParamState>();
  }
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr) {
    return std::make_unique<torch::optim::AdamParamState>();
  }
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) {
    return std::make_unique<torch::optim::AdamWParamState>();
  }
  if (dynamic_cast<const torch::optim::RMSprop*>(&optimizer) != nullptr) {
    return std::make_unique<torch::optim::RMSpropParamState>();
  }
  if (dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr) {
    return std::make_unique<torch::optim::AdagradParamState>();
  }
  return nullptr;
}

// ---- Options: visited by name ----

template <class Options, class Visit>
void show_adam_options(Options& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}

// Returns whether the kind is known.
template <class Visit>
bool show_options(torch::optim::OptimizerOptions& base, const Visit& visit) {
  if (auto* own = dynamic_cast<ParameterOptions*>(&base)) {
    for (const auto& [name, value] : own->named())
      std::visit([&, option = name](auto* held) { visit(option, *held); }, value);
  } else if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&base)) {
    visit("lr", sgd->lr());
    visit("momentum", sgd->momentum());
    visit("dampening", sgd->dampening());
    visit("weight_decay", sgd->weight_decay());
    visit("nesterov", sgd->nesterov());
  } else if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&base)) {
    show_adam_options(*adam, visit);
  } else if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&base)) {
    show_adam_options(*adamw, visit);
  } else if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropOptions*>(&base)) {
    visit("lr", rmsprop->lr());
    visit("alpha", rmsprop->alpha());
    visit("eps", rmsprop->eps());
    visit("weight_decay", rmsprop->weight_decay());
    visit("momentum", rmsprop->momentum());
    visit("centered", rmsprop->centered());
  } else if (auto* adagrad = dynamic_cast<torch::optim::AdagradOptions*>(&base)) {
    visit("lr", adagrad->lr());
    visit("lr_decay", adagrad->lr_decay());
    visit("weight_decay", adagrad->weight_decay());
    visit("initial_accumulator_value", adagrad->initial_accumulator_value());
    visit("eps", adagrad->eps());
  } else {
    return false;
  }
  return true;
}

[[noreturn]] void refuse_option(const std::string& name, const json& values) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the checkpoint's options of a parameter group have no valid '{}': {}",
                          name, values.dump()),
              {.subject = name, .hint = "resume with the kind of optimizer that was saved"});
}

struct SetOption {
  const json& values;
  const json& at(const char* name) const {
    const auto found = values.find(name);
    if (found == values.end()) refuse_option(name, values);
    return *found;
  }
  void operator()(const char* name, double& value) const {
    if (!at(name).is_number()) refuse_option(name, values);
    value = at(name).get<double>();
  }
  void operator()(const char* name, int64_t& value) const {
    if (!at(name).is_number_integer()) refuse_option(name, values);
    value = at(name).get<int64_t>();
  }
  void operator()(const char* name, bool& value) const {
    if (!at(name).is_boolean()) refuse_option(name, values);
    value = at(name).get<bool>();
  }
  void operator()(const char* name, std::tuple<double, double>& value) const {
    const json& pair = at(name);
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number()) {
      refuse_option(name, values);
    }
    value = {pair[0].get<double>(), pair[1].get<double>()};
  }
};

}  // namespace

std::string optimizer_type(const torch::optim::Optimizer& optimizer) {
  const std::string name = c10::demangle(typeid(optimizer).name());
  const std::string space = "torch::optim::";
  return name.starts_with(space) ? name.substr(space.size()) : name;
}

ParameterState torch_state_of(torch::optim::Optimizer& optimizer, const at::Tensor& held) {
  const auto found = optimizer.state().find(held.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return {};
  ParameterState result;
  const auto steps = show_state(*found->second, [&](const char* name, const at::Tensor& tensor) {
    if (tensor.defined()) result.tensors.emplace_back(name, tensor);
  });
  if (!steps) refuse_optimizer(optimizer);
  // SGD does not count steps; only whether it has taken one is known.
  result.steps = *steps != nullptr ? **steps : static_cast<int64_t>(!result.tensors.empty());
  return result;
}

ParameterState make_torch_state(torch::optim::Optimizer& optimizer, const at::Tensor& held,
                                int64_t steps, const std::vector<std::string>& names) {
  const auto* own = dynamic_cast<const ParameterOptimizer*>(&optimizer);
  auto state = own != nullptr ? new_state(*own, held) : empty_state(optimizer);
  if (state == nullptr) refuse_optimizer(optimizer);
  size_t found = 0;
  const auto counted = show_state(*state, [&](const char* name, at::Tensor& tensor) {
    if (std::find(names.begin(), names.end(), name) == names.end()) return;
    if (!tensor.defined()) tensor = at::zeros_like(held, at::MemoryFormat::Contiguous);
    ++found;
  });
  if (int64_t* const count = counted.value_or(nullptr)) *count = steps;
  if (found != names.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} does not have the state that the checkpoint holds: {}",
                            optimizer_type(optimizer), fmt::join(names, ", ")),
                {.hint = "resume with the kind of optimizer that was saved"});
  }
  optimizer.state()[held.unsafeGetTensorImpl()] = std::move(state);
  return torch_state_of(optimizer, held);
}

nlohmann::json options_of(const torch::optim::Optimizer& optimizer,
                          const torch::optim::OptimizerOptions& options) {
  json result = json::object();
  const auto copy = options.clone();
  if (!show_options(*copy, [&](const char* name, const auto& value) { result[name] = value; })) {
    refuse_optimizer(optimizer);
  }
  return result;
}

void set_options(const torch::optim::Optimizer& optimizer, torch::optim::OptimizerOptions& options,
                 const nlohmann::json& values) {
  const auto trial = options.clone();
  if (!show_options(*trial, SetOption{values})) refuse_optimizer(optimizer);
  show_options(options, SetOption{values});
}

}  // namespace coupler::optim
