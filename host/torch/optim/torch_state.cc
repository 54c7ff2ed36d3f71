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

namespace coupler::optim {
namespace {

using nlohmann::json;

[[noreturn]] void refuse_optimizer(const torch::optim::Optimizer& optimizer) {
  const std::string type = optimizer_type(optimizer);
  throw Error(ErrorCode::kUnsupported,
              fmt::format("the state of the optimizer {} cannot be saved: only SGD, Adam, AdamW, "
                          "RMSprop and Adagrad are supported",
                          type),
              {.subject = type, .hint = "use one of these if the job is to be resumed"});
}

// ---- State: one function per kind visits the tensors by name and returns the step count ----

template <class Visit>
int64_t* show(torch::optim::SGDParamState& state, const Visit& visit) {
  visit("momentum_buffer", state.momentum_buffer());
  return nullptr;
}
template <class State, class Visit>
int64_t* show_adam(State& state, const Visit& visit) {
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
  visit("max_exp_avg_sq", state.max_exp_avg_sq());
  return &state.step();
}
template <class Visit>
int64_t* show(torch::optim::AdamParamState& state, const Visit& visit) {
  return show_adam(state, visit);
}
template <class Visit>
int64_t* show(torch::optim::AdamWParamState& state, const Visit& visit) {
  return show_adam(state, visit);
}
template <class Visit>
int64_t* show(torch::optim::RMSpropParamState& state, const Visit& visit) {
  visit("square_avg", state.square_avg());
  visit("momentum_buffer", state.momentum_buffer());
  visit("grad_avg", state.grad_avg());
  return &state.step();
}
template <class Visit>
int64_t* show(torch::optim::AdagradParamState& state, const Visit& visit) {
  visit("sum", state.sum());
  return &state.step();
}

template <class State>
std::optional<ParameterState> read_as(torch::optim::OptimizerParamState& base) {
  auto* state = dynamic_cast<State*>(&base);
  if (state == nullptr) return std::nullopt;
  ParameterState result;
  const int64_t* steps = show(*state, [&](const char* name, at::Tensor& tensor) {
    if (tensor.defined()) result.tensors.emplace_back(name, tensor);
  });
  // SGD does not count steps; only whether it has taken one is known.
  result.steps = steps != nullptr ? *steps : static_cast<int64_t>(!result.tensors.empty());
  return result;
}

template <class State>
std::unique_ptr<torch::optim::OptimizerParamState> make_as(const at::Tensor& held, int64_t steps,
                                                           const std::vector<std::string>& names) {
  auto state = std::make_unique<State>();
  size_t found = 0;
  int64_t* counted = show(*state, [&](const char* name, at::Tensor& tensor) {
    if (std::find(names.begin(), names.end(), name) == names.end()) return;
    tensor = at::zeros_like(held, at::MemoryFormat::Contiguous);
    ++found;
  });
  if (counted != nullptr) *counted = steps;
  if (found != names.size()) return nullptr;
  return state;
}

// ---- Options: visited by name ----

template <class Options, class Visit>
void show_betas(Options& options, const Visit& visit) {
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}

// Returns whether the kind is known.
template <class Visit>
bool show_options(torch::optim::OptimizerOptions& base, const Visit& visit) {
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&base)) {
    visit("lr", sgd->lr());
    visit("momentum", sgd->momentum());
    visit("dampening", sgd->dampening());
    visit("weight_decay", sgd->weight_decay());
    visit("nesterov", sgd->nesterov());
  } else if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&base)) {
    visit("lr", adam->lr());
    show_betas(*adam, visit);
  } else if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&base)) {
    visit("lr", adamw->lr());
    show_betas(*adamw, visit);
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
  return name.rfind(space, 0) == 0 ? name.substr(space.size()) : name;
}

ParameterState torch_state_of(torch::optim::Optimizer& optimizer, const at::Tensor& held) {
  const auto found = optimizer.state().find(held.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return {};
  torch::optim::OptimizerParamState& state = *found->second;
  if (auto sgd = read_as<torch::optim::SGDParamState>(state)) return *std::move(sgd);
  if (auto adam = read_as<torch::optim::AdamParamState>(state)) return *std::move(adam);
  if (auto adamw = read_as<torch::optim::AdamWParamState>(state)) return *std::move(adamw);
  if (auto rmsprop = read_as<torch::optim::RMSpropParamState>(state)) return *std::move(rmsprop);
  if (auto adagrad = read_as<torch::optim::AdagradParamState>(state)) return *std::move(adagrad);
  refuse_optimizer(optimizer);
}

ParameterState make_torch_state(torch::optim::Optimizer& optimizer, const at::Tensor& held,
                                int64_t steps, const std::vector<std::string>& names) {
  std::unique_ptr<torch::optim::OptimizerParamState> state;
  if (dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr) {
    state = make_as<torch::optim::SGDParamState>(held, steps, names);
  } else if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr) {
    state = make_as<torch::optim::AdamParamState>(held, steps, names);
  } else if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) {
    state = make_as<torch::optim::AdamWParamState>(held, steps, names);
  } else if (dynamic_cast<torch::optim::RMSprop*>(&optimizer) != nullptr) {
    state = make_as<torch::optim::RMSpropParamState>(held, steps, names);
  } else if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr) {
    state = make_as<torch::optim::AdagradParamState>(held, steps, names);
  } else {
    refuse_optimizer(optimizer);
  }
  if (state == nullptr) {
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
