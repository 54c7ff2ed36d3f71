#include "optim/torch_state.h"

#include <ATen/Functions.h>
#include <c10/util/Type.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <deque>
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
                          "AdamW, RMSprop, Adagrad, LBFGS and Coupler's own are supported",
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
  } else if (auto* lbfgs = dynamic_cast<torch::optim::LBFGSOptions*>(&base)) {
    visit("lr", lbfgs->lr());
    visit("max_iter", lbfgs->max_iter());
    visit("max_eval", lbfgs->max_eval());
    visit("tolerance_grad", lbfgs->tolerance_grad());
    visit("tolerance_change", lbfgs->tolerance_change());
    visit("history_size", lbfgs->history_size());
    visit("line_search_fn", lbfgs->line_search_fn());
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
  void operator()(const char* name, std::optional<int64_t>& value) const {
    value.reset();
    if (!at(name).is_null()) (*this)(name, value.emplace());
  }
  void operator()(const char* name, std::optional<std::string>& value) const {
    if (!at(name).is_null() && !at(name).is_string()) refuse_option(name, values);
    value.reset();
    if (at(name).is_string()) value = at(name).get<std::string>();
  }
  void operator()(const char* name, std::tuple<double, double>& value) const {
    const json& pair = at(name);
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number()) {
      refuse_option(name, values);
    }
    value = {pair[0].get<double>(), pair[1].get<double>()};
  }
};

struct GetOption {
  json& values;
  template <class Value>
  void operator()(const char* name, const Value& value) const {
    values[name] = value;
  }
  template <class Value>
  void operator()(const char* name, const std::optional<Value>& value) const {
    values[name] = value ? json(*value) : json();
  }
};

// ---- LBFGS, whose history is of all its variables together. ----

int64_t elements_of(const torch::optim::Optimizer& optimizer) {
  int64_t count = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) count += parameter.numel();
  }
  return count;
}

// It keeps its state with its first variable.
const at::Tensor& key_of(const torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups().at(0).params().at(0);
}

void set_list(StateDict& state, const std::string& name, const std::deque<at::Tensor>& list) {
  for (size_t i = 0; i < list.size(); ++i) state.set(fmt::format("{}/{}", name, i), list[i]);
}

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

bool has_whole_state(const torch::optim::Optimizer& optimizer) {
  const auto* own = dynamic_cast<const ParameterOptimizer*>(&optimizer);
  return dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr ||
         (own != nullptr && !own->is_elementwise());
}

// Of LBFGS without `al`, which each search computes before it uses it.
StateDict whole_state_of(torch::optim::Optimizer& optimizer) {
  if (auto* own = dynamic_cast<ParameterOptimizer*>(&optimizer)) return states_of(*own);
  StateDict result;
  const auto found = optimizer.state().find(key_of(optimizer).unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return result;
  auto& state = static_cast<torch::optim::LBFGSParamState&>(*found->second);
  result.set("func_evals", state.func_evals());
  result.set("n_iter", state.n_iter());
  result.set("t", state.t());
  result.set("prev_loss", state.prev_loss());
  const auto set = [&](const char* name, const at::Tensor& tensor) {
    if (tensor.defined()) result.set(name, tensor);
  };
  set("d", state.d());
  set("H_diag", state.H_diag());
  set("prev_flat_grad", state.prev_flat_grad());
  set_list(result, "old_dirs", state.old_dirs());
  set_list(result, "old_stps", state.old_stps());
  set_list(result, "ro", state.ro());
  return result;
}

void set_whole_state(torch::optim::Optimizer& optimizer, const StateDict& saved) {
  if (auto* own = dynamic_cast<ParameterOptimizer*>(&optimizer)) return set_states(*own, saved);
  const at::Tensor& key = key_of(optimizer);
  if (saved.values().empty()) {
    optimizer.state().erase(key.unsafeGetTensorImpl());
    return;
  }
  const int64_t elements = elements_of(optimizer);
  auto state = std::make_unique<torch::optim::LBFGSParamState>();
  state->func_evals(saved.integer("func_evals"));
  state->n_iter(saved.integer("n_iter"));
  state->t(saved.number("t"));
  state->prev_loss(saved.number("prev_loss"));
  // expected: number of elements; of one per variable element, or a single number.
  const auto get = [&](const std::string& name, int64_t expected) {
    const at::Tensor& tensor = saved.tensor(name);
    if (tensor.numel() != expected) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the state '{}' of LBFGS has {} elements, but must have {}", name,
                              tensor.numel(), expected),
                  {.subject = name, .hint = "resume with the parameters that were saved"});
    }
    return tensor.to(key.device());
  };
  if (saved.has("d")) state->d(get("d", elements));
  if (saved.has("H_diag")) state->H_diag(get("H_diag", 1));
  if (saved.has("prev_flat_grad")) state->prev_flat_grad(get("prev_flat_grad", elements));
  for (size_t i = 0; saved.has(fmt::format("old_dirs/{}", i)); ++i) {
    state->old_dirs().push_back(get(fmt::format("old_dirs/{}", i), elements));
    state->old_stps().push_back(get(fmt::format("old_stps/{}", i), elements));
    state->ro().push_back(get(fmt::format("ro/{}", i), 1));
  }
  optimizer.state()[key.unsafeGetTensorImpl()] = std::move(state);
}

nlohmann::json options_of(const torch::optim::Optimizer& optimizer,
                          const torch::optim::OptimizerOptions& options) {
  json result = json::object();
  const auto copy = options.clone();
  if (!show_options(*copy, GetOption{result})) refuse_optimizer(optimizer);
  return result;
}

void set_options(const torch::optim::Optimizer& optimizer, torch::optim::OptimizerOptions& options,
                 const nlohmann::json& values) {
  const auto trial = options.clone();
  if (!show_options(*trial, SetOption{values})) refuse_optimizer(optimizer);
  show_options(options, SetOption{values});
}

}  // namespace coupler::optim
