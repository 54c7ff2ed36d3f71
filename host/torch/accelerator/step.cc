// One training step: accumulation, mixed precision, backward, clipping, and access to gradients.
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "accelerator/accelerator.h"
#include "base/error.h"
#include "base/log.h"
#include "dry_run/dry_run.h"
#include "precision/precision.h"
#include "tensor_parallel/divided_parameter.h"
#include "tensors/autocast_state.h"
#include "tensors/tensor_ops.h"

namespace coupler {
namespace {

void require_above_0(const char* name, double value) {
  if (!(value > 0)) fail_argument(fmt::format("{} is {}, but must be above 0", name, value), "");
}

// asked: the name of the call that needs gradients.
void require_gradients(strategy::Strategy& model, const char* asked) {
  if (!model.gradient_sync().has_consumers()) return;
  fail_usage(fmt::format("{}: the optimizer has used the gradients of '{}' during backward "
                         "(training.optimizer_in_backward is true)",
                         asked, model.model().name),
             "training.optimizer_in_backward", "set it to false to clip or read gradients");
}

// Whether a backward that computes the gradients of these inputs only (empty: of all) reduces the
// model's. Gradients of an earlier backward that were not averaged yet wait for any that averages.
bool takes_part(strategy::Strategy& model, const std::vector<at::Tensor>& inputs) {
  return inputs.empty() || model.gradient_sync().has_waiting() ||
         std::any_of(inputs.begin(), inputs.end(),
                     [&](const at::Tensor& input) { return model.has(input); });
}

}  // namespace

ScopeGuard Accelerator::begin_accumulate(const std::vector<detail::ModelRef>& models) {
  Impl& impl = *impl_;
  std::vector<strategy::Strategy*> scope;
  for (const detail::ModelRef& model : models) scope.push_back(&impl.strategy_of(model));
  const auto loader = impl.current_loader();
  impl.accumulation.begin(std::move(scope), loader != nullptr && loader->at_last_batch());
  return ScopeGuard([&impl] { impl.accumulation.end(); });
}

ScopeGuard Accelerator::begin_no_sync(const std::vector<detail::ModelRef>& models) {
  std::vector<strategy::Strategy*> found;
  for (const detail::ModelRef& model : models) found.push_back(&impl_->strategy_of(model));
  for (strategy::Strategy* model : found) model->gradient_sync().set_sync(false);
  return ScopeGuard([found] {
    for (strategy::Strategy* model : found) model->gradient_sync().set_sync(true);
  });
}

void Accelerator::trigger_sync_of(const detail::ModelRef& model) {
  impl_->strategy_of(model).gradient_sync().set_sync(true);
}

BackwardScale Accelerator::Impl::backward_scale(std::optional<double> weight) {
  const auto loader = current_loader();
  const bool stands_in = loader != nullptr && loader->stands_in();
  if (stands_in && weight) weight = 0;
  BackwardScale scale = accumulation.scale(weight, mean_comm->size(), [&](double value) {
    return tensors::all_reduce_number(*mean_comm, value, DB_SUM);
  });
  if (stands_in) scale.loss = 0;
  return scale;
}

at::Tensor Accelerator::Impl::scale_loss(const at::Tensor& loss,
                                         const std::vector<strategy::Strategy*>& expected) {
  if (autocast_type && !autocast_used.exchange(true)) {
    coupler::log(
        LogLevel::kWarning, "train",
        fmt::format(
            "training.mixed_precision is {}, but there was no {}accelerator.autocast() before "
            "this backward: forward ran in the model's own types",
            config.training.mixed_precision,
            config.training.autocast == "auto" ? "loop over a prepared data loader and no " : ""));
  }
  return scaler == nullptr ? loss : scaler->scale_loss(loss, {expected.begin(), expected.end()});
}

std::optional<AutocastSettings> Accelerator::Impl::autocast_settings(bool enabled) const {
  if (!autocast_type) return std::nullopt;
  AutocastSettings settings{device.type(), *autocast_type, enabled};
  // A cached copy would outlive a parameter that is released after use, so the whole model would
  // end up in memory.
  settings.cache_casts = std::all_of(models.begin(), models.end(), [](const auto& model) {
    return model->description().parameters_stay;
  });
  settings.fp8_gradients = precision::fp8_gradient_type(config.training);
  return settings;
}

AutocastScope Accelerator::autocast(bool enabled) {
  if (enabled) impl_->autocast_used = true;
  return AutocastScope(impl_->autocast_settings(enabled));
}

bool Accelerator::optimizer_step_was_skipped() const {
  return std::any_of(impl_->optimizers.begin(), impl_->optimizers.end(), [](const auto& prepared) {
    const auto state = prepared.state.lock();
    return state != nullptr && state->step_was_skipped();
  });
}

void Accelerator::unscale_gradients() {
  if (impl_->scaler == nullptr || !sync_gradients()) return;
  std::vector<strategy::ModelState*> models;
  for (const auto& model : impl_->models) models.push_back(model.get());
  impl_->scaler->unscale(models);
}

double Accelerator::loss_scale() const {
  return impl_->scaler == nullptr ? 1.0 : impl_->scaler->scale();
}

void Accelerator::backward(const at::Tensor& loss, const BackwardOptions& options, CallSite) {
  backward_of(loss, std::nullopt, options);
}

void Accelerator::backward_sum(const at::Tensor& loss_sum, double weight,
                               const BackwardOptions& options) {
  if (!(weight >= 0) || !std::isfinite(weight)) {
    fail_argument(
        fmt::format("backward: the weight is {}, but must be finite and at least 0", weight),
        "weight", "pass the number of tokens or samples that the loss sums over");
  }
  backward_of(loss_sum, weight, options);
}

void Accelerator::backward_of(const at::Tensor& loss, std::optional<double> weight,
                              const BackwardOptions& options) {
  for (size_t i = 0; i < options.inputs.size(); ++i) {
    const at::Tensor& input = options.inputs[i];
    if (input.defined() && input.requires_grad() && input.is_leaf()) continue;
    fail_argument(fmt::format("backward: inputs[{}] {}", i,
                              !input.defined()         ? "is an undefined tensor"
                              : !input.requires_grad() ? "does not require a gradient"
                                                       : "is not a leaf of the graph"),
                  "inputs", "pass parameters, or tensors made with requires_grad(true)");
  }
  Impl& impl = *impl_;
  const BackwardScale scale = impl.backward_scale(weight);
  // Models that this backward belongs to on every rank: those of the scope, or the only one.
  std::vector<strategy::Strategy*> expected = impl.accumulation.scope();
  if (expected.empty() && impl.models.size() == 1) expected.push_back(impl.models[0].get());
  std::vector<strategy::Strategy*> reached;  // without those that options.inputs leaves out
  std::copy_if(expected.begin(), expected.end(), std::back_inserter(reached),
               [&](strategy::Strategy* model) { return takes_part(*model, options.inputs); });
  for (strategy::Strategy* model : expected) model->gradient_sync().begin_backward(scale.average);
  if (impl.dry_run != nullptr) impl.dry_run->backward_begins(impl.accumulation.loop().sync);
  try {
    const at::Tensor scaled = scale.loss == 1 ? loss : loss * scale.loss;
    // Backward computes in the types of forward, whatever autocast scope it is called in.
    const auto outside = tensors::outside_autocast();
    impl.scale_loss(scaled, reached)
        .backward(
            {}, options.retain_graph || options.create_graph, options.create_graph,
            options.inputs.empty() ? std::nullopt : std::optional<at::TensorList>(options.inputs));
  } catch (...) {
    for (const auto& model : impl.models) model->gradient_sync().abandon_backward();
    throw;
  }
  if (impl.dry_run != nullptr) impl.dry_run->backward_ends();
  for (const auto& model : impl.models) {
    if (!model->gradient_sync().sync()) model->gradient_sync().set_waiting(true);
  }
  for (strategy::Strategy* model : expected) {
    strategy::GradientSync& gradients = model->gradient_sync();
    gradients.end_backward(std::find(reached.begin(), reached.end(), model) != reached.end());
    if (gradients.sync()) gradients.set_waiting(false);
  }
  impl.accumulation.ran_backward(scale.loss * scale.average);
}

int64_t Accelerator::gradient_accumulation_steps() const {
  return impl_->config.training.gradient_accumulation_steps;
}

void Accelerator::set_gradient_accumulation_steps(int64_t steps) {
  if (steps < 1) {
    fail_argument(fmt::format("gradient_accumulation_steps is {}, but must be at least 1", steps),
                  "gradient_accumulation_steps");
  }
  impl_->config.training.gradient_accumulation_steps = steps;
}

bool Accelerator::sync_gradients() const { return impl_->accumulation.loop().sync; }

double Accelerator::clip_grad_norm_of(const detail::ModelRef& model, double max_norm,
                                      double norm_type) {
  return impl_->clip({{&impl_->strategy_of(model), {.type = norm_type}}}, max_norm, norm_type);
}

double Accelerator::clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                                   double norm_type, CallSite) {
  std::vector<std::set<size_t>> indices(impl_->models.size());  // by model
  for (size_t i = 0; i < parameters.size(); ++i) {
    bool known = false;
    for (size_t m = 0; m < indices.size() && !known; ++m) {
      const size_t index = impl_->models[m]->index_of(parameters[i]);
      known = index < impl_->models[m]->model().parameters.size();
      if (known) indices[m].insert(index);
    }
    if (known) continue;
    fail_usage(
        fmt::format("clip_grad_norm: parameters[{}], {}, is not a parameter of a prepared "
                    "model",
                    i,
                    parameters[i].defined() ? fmt::format("a tensor of shape [{}]",
                                                          fmt::join(parameters[i].sizes(), ", "))
                                            : "an undefined tensor"),
        "parameters", "pass parameters of models given to prepare");
  }
  std::vector<std::pair<strategy::Strategy*, strategy::GradientNorm>> chosen;
  for (size_t m = 0; m < indices.size(); ++m) {
    if (indices[m].empty()) continue;
    const auto& own = impl_->models[m]->model().parameters;
    strategy::GradientNorm which{.type = norm_type};
    // All at once are faster than one by one.
    bool all = true;
    for (size_t i = 0; i < own.size(); ++i)
      all = all && (!own[i].tensor.requires_grad() || indices[m].count(i) != 0);
    if (!all) which.parameters = std::move(indices[m]);
    chosen.emplace_back(impl_->models[m].get(), std::move(which));
  }
  return impl_->clip(chosen, max_norm, norm_type);
}

double Accelerator::Impl::clip(
    const std::vector<std::pair<strategy::Strategy*, strategy::GradientNorm>>& chosen,
    double max_norm, double norm_type) {
  require_above_0("clip_grad_norm: max_norm", max_norm);
  require_above_0("clip_grad_norm: norm_type", norm_type);
  if (!accumulation.loop().sync) return 0;
  bool skipped = false;
  for (const auto& [model, which] : chosen) {
    require_gradients(*model, "clip_grad_norm");
    skipped = unscale(*model) || skipped;
  }
  if (skipped) return std::numeric_limits<double>::infinity();
  const strategy::GradientNorm all{.type = norm_type};
  double power = 0;
  for (const auto& [model, which] : chosen) {
    try {
      power = all.together(power, all.power_of(tensor_parallel::gradient_norm(*model, which)));
    } catch (const Error& error) {
      // The values of a dry run mean nothing, so they may have no norm.
      if (dry_run == nullptr || error.code() != ErrorCode::kInvalidArgument) throw;
      power = 1;
    }
  }
  const double norm = all.norm_of(power);
  for (const auto& [model, which] : chosen) model->limit_gradients(which, norm, max_norm);
  return norm;
}

void Accelerator::clip_grad_value_of(const detail::ModelRef& model, double max_value) {
  require_above_0("clip_grad_value: max_value", max_value);
  if (!sync_gradients()) return;
  strategy::Strategy& strategy = impl_->strategy_of(model);
  require_gradients(strategy, "clip_grad_value");
  if (!impl_->unscale(strategy)) strategy.clip_grad_value(max_value);
}

at::Tensor Accelerator::gradient(const at::Tensor& parameter) {
  for (const auto& model : impl_->models) {
    if (!model->has(parameter)) continue;
    require_gradients(*model, "gradient");
    const size_t index = model->index_of(parameter);
    return tensor_parallel::whole_of(model->model(), index, model->whole_gradient(index));
  }
  fail_usage("gradient: the tensor is not a parameter of a prepared model", "",
             "pass a parameter of a model given to prepare");
}

void Accelerator::for_each_tensor_of(
    const detail::ModelRef& model,
    const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  strategy::Strategy& strategy = impl_->strategy_of(model);
  strategy.synchronize();
  const auto& parameters = strategy.model().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    visit(parameters[i].name,
          tensor_parallel::whole_of(strategy.model(), i, strategy.whole_parameter(i)));
  }
  for (const auto& [name, fixed] : strategy.model().fixed) visit(name, fixed);
  for (const auto& [name, buffer] : strategy.model().buffers) visit(name, buffer);
}

}  // namespace coupler
