#include "optim/optimizer.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>
#include <coupler/error.h>
#include <coupler/optimizer.h>
#include <coupler/optimizers.h>
#include <fmt/ranges.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "optim/parameter_optimizer.h"

namespace coupler::optim {
namespace {

size_t count_parameters(const torch::optim::Optimizer& optimizer) {
  size_t count = 0;
  for (const auto& group : optimizer.param_groups()) count += group.params().size();
  return count;
}

[[noreturn]] void refuse_two_groups(const at::Tensor& parameter) {
  throw Error(
      ErrorCode::kUsage,
      fmt::format("a parameter of shape [{}] is in two groups of the optimizer",
                  fmt::join(parameter.sizes(), ", ")),
      {.hint = "list it in one group only; a tied parameter counts once, whatever its names"});
}

// Whether a tensor group has parts of the parameter.
bool is_divided(const OptimizerState::Given& given) {
  return given.model != nullptr &&
         given.model->model().parameters[given.parameter].division.has_value();
}

}  // namespace

OptimizerState::OptimizerState(torch::optim::Optimizer& optimizer,
                               std::vector<strategy::ModelState*> models, StepRules rules)
    : optimizer_(optimizer), models_(std::move(models)), rules_(std::move(rules)) {
  hold_own_parts();
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& held : group.params()) require_unscalable(held, held.scalar_type());
  }
  parameters_ = count_parameters(optimizer_);
  std::vector<strategy::FlatParameters*> flats;
  for (strategy::ModelState* model : models_) flats.push_back(&model->flat());
  kernel_ = FusedKernel::make(optimizer_, flats, not_fused_);
  if (kernel_ == nullptr) require_no_kernel(models_);
  if (log_enabled(LogLevel::kInfo, "optim")) log(LogLevel::kInfo, "optim", description());
}

void OptimizerState::hold_own_parts() {
  bool in_tensor_group = false;  // whether a parameter is divided over one
  std::unordered_map<const at::TensorImpl*, size_t> group_of;
  std::vector<std::vector<at::Tensor>> held;
  for (auto& group : optimizer_.param_groups()) {
    std::vector<at::Tensor>& list = held.emplace_back();
    std::vector<Given>& given = given_.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      // Module::parameters() lists a tied parameter once per module, but it counts once here.
      const auto [first, is_new] =
          group_of.try_emplace(parameter.unsafeGetTensorImpl(), held.size());
      if (!is_new) {
        if (first->second != held.size()) refuse_two_groups(parameter);
        continue;
      }
      const auto model =
          std::find_if(models_.begin(), models_.end(),
                       [&](const strategy::ModelState* known) { return known->has(parameter); });
      at::Tensor own = parameter;
      Given& from = given.emplace_back();
      if (model != models_.end()) {
        from = {*model, (*model)->index_of(parameter)};
        const auto part = (*model)->part(from.parameter);
        own = part ? part->optimizer_tensor : at::Tensor();
      }
      divided_ = divided_ || !own.is_same(parameter);
      in_tensor_group = in_tensor_group || is_divided(from);
      if (own.defined()) list.push_back(own);
    }
  }
  if (divided_ || in_tensor_group) require_divisible();
  for (size_t i = 0; i < held.size(); ++i) optimizer_.param_groups()[i].params() = held[i];
}

// Called before this rank's parts replace whole parameters.
void OptimizerState::require_divisible() const {
  if (!optimizer_.state().empty()) {
    throw Error(ErrorCode::kUsage,
                "the optimizer took steps before prepare: its state of whole parameters cannot be "
                "divided over ranks",
                {.hint = "prepare model and optimizer before the first step"});
  }
  if (const auto* own = dynamic_cast<const ParameterOptimizer*>(&optimizer_);
      own != nullptr && !own->is_elementwise()) {
    const std::string type = optimizer_type(optimizer_);
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{} needs whole matrices, but ranks hold parts of them", type),
        {.subject = type,
         .hint = "use an optimizer that works element by element (AdamW, NAdam, Lion), or neither "
                 "a backend that shards nor parallel.tensor"});
  }
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer_) != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "LBFGS needs all parameters at once, but no rank holds them all under sharding",
                {.subject = "LBFGS",
                 .hint = "use an optimizer that works element by element (SGD, Adam, AdamW, "
                         "RMSprop), or a backend that replicates"});
  }
}

// Unscaling in fp16 would lose what scaling preserved.
void OptimizerState::require_unscalable(const at::Tensor& parameter, at::ScalarType stored) const {
  if (rules_.scaler == nullptr || !parameter.requires_grad() || stored != at::kHalf) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("training.mixed_precision is fp16, but the optimizer holds an fp16 "
                          "parameter of shape [{}], whose gradient cannot be unscaled",
                          fmt::join(parameter.sizes(), ", ")),
              {.subject = "training.mixed_precision",
               .hint = "keep the model in fp32: autocast computes in fp16 from it"});
}

// Refuses what torch::optim cannot do: it updates all parameters at once, and it allocates and owns
// its state, which therefore cannot be offloaded.
void OptimizerState::require_no_kernel(const std::vector<strategy::ModelState*>& models) const {
  if (rules_.in_backward) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("training.optimizer_in_backward is true, but this optimizer updates all "
                    "parameters at once: {}",
                    not_fused_),
        {.subject = "training.optimizer_in_backward",
         .hint = "use torch::optim::SGD, Adam or AdamW, or set it to false"});
  }
  for (strategy::ModelState* model : models) {
    for (const strategy::FlatGroup& group : model->flat().groups()) {
      if (group.state_memory == nullptr) continue;
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("the state of this optimizer cannot be offloaded: {}", not_fused_),
                  {.subject = "offload_optimizer.device",
                   .hint = "use torch::optim::SGD, Adam or AdamW, or offload the parameters only"});
    }
  }
}

void OptimizerState::on_backward_begin() {
  if (accumulating()) return;
  if (std::exchange(took_gradients_, true)) {
    throw Error(ErrorCode::kUsage,
                "a second backward runs after one that updated parameters, without an optimizer "
                "step() in between (training.optimizer_in_backward is true)",
                {.subject = "training.optimizer_in_backward",
                 .hint = "call backward once before each step(), on the sum of the losses, or "
                         "accumulate; freeze a model that gradients only pass through; or set it "
                         "to false"});
  }
}

void OptimizerState::on_gradients_ready(strategy::FlatParameters& flat, size_t first, size_t end) {
  if (!accumulating()) kernel_->step_slots(flat, first, end);
}

void OptimizerState::step() {
  stepped_scope_ = rules_.loop->scope;
  if (accumulating()) return;
  took_gradients_ = false;
  require_given_parameters();
  require_no_unfrozen();
  if (rules_.scaler != nullptr) {
    skipped_ = rules_.scaler->unscale(models_);
    rules_.scaler->update(models_);
    if (skipped_) return;
  }
  if (kernel_ != nullptr) {
    kernel_->step();
  } else {
    // In a loop's autocast, an optimizer's own products would be rounded.
    const auto computing = rules_.compute();
    optimizer_.step();
  }
  updated();
}

at::Tensor OptimizerState::step(const std::function<at::Tensor()>& closure) {
  require_closure(closure != nullptr);
  require_given_parameters();
  require_no_unfrozen();
  std::shared_ptr<void> computing = rules_.compute();
  at::Tensor first;
  const auto evaluate = [&] {
    const at::AutoGradMode grad(true);
    computing.reset();
    at::autocast::clear_cache();  // of values before the search's last move
    const at::Tensor loss = closure();
    computing = rules_.compute();
    if (!loss.defined() || loss.numel() != 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: the closure of step returned {}", optimizer_type(optimizer_),
                              loss.defined() ? fmt::format("a tensor of shape [{}]",
                                                           fmt::join(loss.sizes(), ", "))
                                             : "an undefined tensor"),
                  {.subject = "closure", .hint = "return the loss, a single number"});
    }
    took_gradients_ = false;
    const at::Tensor value =
        at::full({}, search_value(loss.item<double>()), loss.options().requires_grad(false));
    if (!first.defined()) first = value.clone();
    return value;
  };
  if (kernel_ != nullptr) {
    evaluate();
    kernel_->step();
  } else {
    optimizer_.step(evaluate);
  }
  updated();
  return first;
}

void OptimizerState::require_closure(bool given) const {
  const std::string name = optimizer_type(optimizer_);
  const auto refuse = [&](ErrorCode code, const std::string& why, const std::string& subject,
                          const std::string& hint) {
    throw Error(code, fmt::format("{}: step(closure) {}", name, why),
                {.subject = subject, .hint = hint});
  };
  if (!given) {
    refuse(ErrorCode::kInvalidArgument, "with an empty function", "closure",
           "pass a function that returns the loss, or call step()");
  }
  if (rules_.loop->scope != 0) {
    refuse(ErrorCode::kUsage,
           "inside accelerator.accumulate: the closure drops the gradients of the window's "
           "earlier batches",
           "training.gradient_accumulation_steps",
           "call step(closure) outside accumulate, on a larger batch");
  }
  if (rules_.scaler != nullptr) {
    refuse(ErrorCode::kUnsupported,
           "with fp16: the gradients of each evaluation would have another scale",
           "training.mixed_precision", "use training.mixed_precision = \"bf16\"");
  }
  if (kernel_ != nullptr) return;
  if (divided_) {
    refuse(ErrorCode::kUnsupported,
           "under sharding: an evaluation would see the other ranks' parts as they were before "
           "the search",
           name, "use SGD, Adam or AdamW, which evaluate once, or a backend that replicates");
  }
  if (rules_.averages_gradients && !rules_.averages_gradients()) {
    refuse(ErrorCode::kUnsupported,
           "while gradients are not averaged (LocalSGD, no_sync): each rank would search on its "
           "own and evaluate a different number of times",
           name, "let gradients be averaged, or use SGD, Adam or AdamW, which evaluate once");
  }
}

// What the gradients belong to: the loss that backward ran on, as the mean over ranks.
double OptimizerState::search_value(double loss) const {
  const double own = loss * rules_.loop->loss_factor;
  return rules_.averages_gradients && rules_.averages_gradients() ? rules_.mean_over_ranks(own)
                                                                  : own;
}

void OptimizerState::require_given_parameters() const {
  if (count_parameters(optimizer_) == parameters_) return;
  throw Error(ErrorCode::kUsage, "parameters were added to the optimizer after prepare",
              {.hint = "call add_param_group of the optimizer that prepare returned"});
}

// Nothing averages, sums, unscales or clips the gradients of one that was frozen at prepare, and a
// sharded model drops them.
void OptimizerState::require_no_unfrozen() const {
  for (const std::vector<Given>& group : given_) {
    for (const Given& given : group) {
      if (given.model == nullptr || given.model->is_trained(given.parameter)) continue;
      const strategy::Model& model = given.model->model();
      const strategy::ModelParameter& parameter = model.parameters[given.parameter];
      if (!parameter.tensor.requires_grad()) continue;
      throw Error(ErrorCode::kUsage,
                  fmt::format("step: '{}' was frozen when its model '{}' was prepared, and is "
                              "trained now: its gradients are not averaged over ranks",
                              parameter.name, model.name),
                  {.subject = parameter.name,
                   .hint = "prepare the model with every parameter that will be trained unfrozen; "
                           "after prepare, these can be frozen and unfrozen again"});
    }
  }
}

// What add_param_group cannot do for any parameter.
void OptimizerState::require_addable(const torch::optim::OptimizerParamGroup& group) const {
  const std::string type = optimizer_type(optimizer_);
  const auto refuse = [&](ErrorCode code, const std::string& why, const std::string& hint) {
    throw Error(code, fmt::format("add_param_group: {}", why), {.subject = type, .hint = hint});
  };
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer_) != nullptr) {
    refuse(ErrorCode::kUnsupported, type + " has one group of parameters",
           "make and prepare another optimizer of all parameters");
  }
  if (dynamic_cast<const torch::optim::Adagrad*>(&optimizer_) != nullptr) {
    refuse(ErrorCode::kUnsupported, "Adagrad makes its state in its constructor only",
           "make and prepare another optimizer of all parameters");
  }
  if (!group.has_options()) return;
  const torch::optim::OptimizerOptions& given = group.options();
  const torch::optim::OptimizerOptions& own = optimizer_.defaults();
  if (typeid(given) != typeid(own)) {
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("the group's options are {}, but the optimizer is {}",
                       c10::demangle(typeid(given).name()), type),
           "pass the options of this kind of optimizer, or none");
  }
}

// Where a parameter to be added is.
OptimizerState::Given OptimizerState::given_of(const at::Tensor& parameter) const {
  const auto shape = [&] { return fmt::format("[{}]", fmt::join(parameter.sizes(), ", ")); };
  strategy::ModelState* const model = rules_.model_of ? rules_.model_of(parameter) : nullptr;
  if (model == nullptr) {
    throw Error(ErrorCode::kUsage,
                fmt::format("add_param_group: a parameter of shape {} belongs to no prepared model",
                            shape()),
                {.hint = "prepare its model first"});
  }
  const Given result{model, model->index_of(parameter)};
  const std::string& name = model->model().parameters[result.parameter].name;
  for (const auto& group : given_) {
    for (const Given& known : group) {
      if (known.model == model && known.parameter == result.parameter) refuse_two_groups(parameter);
    }
  }
  if (!model->is_trained(result.parameter)) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("add_param_group: '{}' was frozen when its model was prepared, so its "
                    "gradients are not averaged over ranks",
                    name),
        {.subject = name,
         .hint = "prepare the model with every parameter that will be trained unfrozen, and "
                 "give the optimizer those that are trained first"});
  }
  if (rules_.in_backward && std::find(models_.begin(), models_.end(), model) == models_.end()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("add_param_group: '{}' belongs to another model than the optimizer's "
                            "other parameters, and training.optimizer_in_backward is true",
                            name),
                {.subject = "training.optimizer_in_backward",
                 .hint = "give the optimizer a parameter of each model before prepare"});
  }
  return result;
}

void OptimizerState::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  require_given_parameters();
  require_addable(group);
  std::vector<Given> given;
  std::vector<at::Tensor> held;
  std::vector<strategy::ModelState*> models = models_;
  std::unordered_set<const at::TensorImpl*> seen;
  bool divided = divided_;
  for (const at::Tensor& parameter : group.params()) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;  // tied
    const Given& from = given.emplace_back(given_of(parameter));
    require_unscalable(parameter, from.model->stored_type(from.parameter));
    if (kernel_ != nullptr && !parameter.is_floating_point()) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("add_param_group: a parameter is {}, which the {} optimizer's kernel "
                              "does not support",
                              c10::toString(parameter.scalar_type()), kernel_->name()),
                  {.subject = kernel_->name(), .hint = "give it to the optimizer before prepare"});
    }
    if (std::find(models.begin(), models.end(), from.model) == models.end())
      models.push_back(from.model);
    const auto part = from.model->part(from.parameter);
    const at::Tensor own = part ? part->optimizer_tensor : at::Tensor();
    divided = divided || !own.is_same(parameter);
    if (own.defined()) held.push_back(own);
  }
  if (kernel_ == nullptr) require_no_kernel(models);
  torch::optim::OptimizerParamGroup own_group(std::move(held));
  if (group.has_options()) own_group.set_options(group.options().clone());
  optim::add_param_group(optimizer_, own_group);
  if (kernel_ != nullptr) {
    std::vector<strategy::FlatParameters*> flats;
    for (strategy::ModelState* model : models) flats.push_back(&model->flat());
    try {
      kernel_->take_groups(optimizer_, flats);
    } catch (...) {
      optimizer_.param_groups().pop_back();
      throw;
    }
  }
  models_ = std::move(models);
  given_.push_back(std::move(given));
  divided_ = divided;
  parameters_ = count_parameters(optimizer_);
}

// Call after each update.
void OptimizerState::updated() {
  for (strategy::ModelState* model : models_)
    model->parameters_changed(strategy::ParameterWriter::kOptimizer);
  if (rules_.after_update) rules_.after_update();
  ++steps_;
}

std::optional<StateDict> OptimizerState::whole_state() {
  if (!has_whole_state()) return std::nullopt;
  return whole_state_of(optimizer_);
}

ParameterState OptimizerState::state_of(const at::Tensor& held) {
  if (kernel_ == nullptr) return torch_state_of(optimizer_, held);
  ParameterState state = kernel_->state_of(held);
  if (state.steps == 0) state.tensors.clear();
  return state;
}

void OptimizerState::forget(const at::Tensor& held) {
  if (kernel_ == nullptr) {
    optimizer_.state().erase(held.unsafeGetTensorImpl());
    return;
  }
  kernel_->set_steps(held, 0);
  const at::NoGradGuard no_grad;
  for (auto& [name, values] : kernel_->state_of(held).tensors) values.zero_();
}

ParameterState OptimizerState::make_state(const at::Tensor& held, int64_t steps,
                                          const std::vector<std::string>& names) {
  if (kernel_ == nullptr) return make_torch_state(optimizer_, held, steps, names);
  ParameterState state = kernel_->state_of(held);
  std::vector<std::string> own;
  for (const auto& [name, tensor] : state.tensors) own.push_back(name);
  if (!std::is_permutation(own.begin(), own.end(), names.begin(), names.end())) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} keeps the state [{}], but the checkpoint has [{}]", kernel_->name(),
                            fmt::join(own, ", "), fmt::join(names, ", ")),
                {.subject = kernel_->name(),
                 .hint = "resume with the optimizer options that were saved (momentum, amsgrad)"});
  }
  kernel_->set_steps(held, steps);
  state.steps = steps;
  return state;
}

void OptimizerState::set_mode(bool training) {
  auto* own = dynamic_cast<ParameterOptimizer*>(&optimizer_);
  if (own == nullptr) return;
  if (kernel_ != nullptr) {
    kernel_->switch_mode(*own, training);
  } else if (training) {
    own->train();
  } else {
    own->eval();
  }
  for (strategy::ModelState* model : models_)
    model->parameters_changed(strategy::ParameterWriter::kOptimizer);
}

void OptimizerState::zero_grad(bool set_to_none) {
  if (!drops_gradients()) return;
  optimizer_.zero_grad(set_to_none);
  if (rules_.scaler != nullptr) rules_.scaler->gradients_dropped(models_);
}

// Loops call zero_grad before backward or after step. In either order, accumulated gradients are
// kept within a window: they are dropped before its first backward, or after its last.
bool OptimizerState::drops_gradients() const {
  const StepState& loop = *rules_.loop;
  if (loop.scope == 0) return true;
  if (stepped_scope_ == loop.scope) return loop.sync;
  return loop.first_of_window || (loop.sync && loop.backward_of_only);
}

std::string OptimizerState::description() const {
  if (kernel_ == nullptr) return fmt::format("unmodified torch::optim: {}", not_fused_);
  return fmt::format("fused {}{}", kernel_->name(), rules_.in_backward ? ", in backward" : "");
}

}  // namespace coupler::optim

namespace coupler {

void Optimizer::step(CallSite) { state_->step(); }
at::Tensor Optimizer::step(const std::function<at::Tensor()>& closure, CallSite) {
  return state_->step(closure);
}
void Optimizer::zero_grad(bool set_to_none) { state_->zero_grad(set_to_none); }
void Optimizer::add_param_group(const torch::optim::OptimizerParamGroup& group, CallSite) {
  state_->add_param_group(group);
}
std::vector<torch::optim::OptimizerParamGroup>& Optimizer::param_groups() {
  return state_->torch_optimizer().param_groups();
}
torch::optim::Optimizer& Optimizer::unwrap() { return state_->torch_optimizer(); }
void Optimizer::train() { state_->set_mode(true); }
void Optimizer::eval() { state_->set_mode(false); }
bool Optimizer::step_was_skipped() const { return state_->step_was_skipped(); }
std::string Optimizer::description() const { return state_->description(); }

}  // namespace coupler
