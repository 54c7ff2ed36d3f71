// One training step: accumulation, backward, clipping, and access to gradients.
#include <ATen/Functions.h>
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "accelerator/accelerator.h"
#include "dry_run/dry_run.h"
#include "tensors/tensor_ops.h"

namespace coupler {
namespace {

// asked: the name of the call that needs gradients.
void require_gradients(strategy::Strategy& model, const char* asked) {
  if (!model.gradient_sync().has_consumers()) return;
  throw Error(ErrorCode::kUsage,
              fmt::format("{}: the optimizer has used the gradients of '{}' during backward "
                          "(training.optimizer_in_backward is true)",
                          asked, model.model().name),
              {.subject = "training.optimizer_in_backward",
               .hint = "set it to false to clip or read gradients"});
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

void Accelerator::backward(const at::Tensor& loss, CallSite) { backward_of(loss, std::nullopt); }

void Accelerator::backward(const at::Tensor& loss_sum, double weight, CallSite) {
  if (!(weight >= 0) || !std::isfinite(weight)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("backward: the weight is {}, but must be finite and at least 0", weight),
        {.subject = "weight",
         .hint = "pass the number of tokens or samples that the loss sums over"});
  }
  backward_of(loss_sum, weight);
}

void Accelerator::backward_of(const at::Tensor& loss, std::optional<double> weight) {
  Impl& impl = *impl_;
  const auto loader = impl.current_loader();
  const bool stands_in = loader != nullptr && loader->stands_in();
  if (stands_in && weight) weight = 0;
  BackwardScale scale = impl.accumulation.scale(weight, world_size(), [&](double value) {
    return tensors::all_reduce_number(*impl.comm, value, DB_SUM);
  });
  if (stands_in) scale.loss = 0;
  // Models that this backward must reach on every rank: those of the scope, or the only one.
  std::vector<strategy::Strategy*> expected = impl.accumulation.scope();
  if (expected.empty() && impl.models.size() == 1) expected.push_back(impl.models[0].get());
  for (strategy::Strategy* model : expected) model->gradient_sync().begin_backward(scale.average);
  if (impl.dry_run != nullptr) impl.dry_run->backward_begins(impl.accumulation.loop().sync);
  try {
    const at::Tensor scaled = scale.loss == 1 ? loss : loss * scale.loss;
    // Backward computes in the types of forward, whatever autocast scope it is called in.
    const c10::impl::ExcludeDispatchKeyGuard outside_autocast(c10::autocast_dispatch_keyset);
    impl.scale_loss(scaled, expected).backward();
  } catch (...) {
    for (const auto& model : impl.models) model->gradient_sync().abandon_backward();
    throw;
  }
  if (impl.dry_run != nullptr) impl.dry_run->backward_ends();
  for (strategy::Strategy* model : expected) model->gradient_sync().end_backward();
  impl.accumulation.ran_backward();
}

int64_t Accelerator::gradient_accumulation_steps() const {
  return impl_->config.training.gradient_accumulation_steps;
}

void Accelerator::set_gradient_accumulation_steps(int64_t steps) {
  if (steps < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("gradient_accumulation_steps is {}, but must be at least 1", steps),
                {.subject = "gradient_accumulation_steps"});
  }
  impl_->config.training.gradient_accumulation_steps = steps;
}

bool Accelerator::sync_gradients() const { return impl_->accumulation.loop().sync; }

double Accelerator::clip_grad_norm_of(const detail::ModelRef& model, double max_norm) {
  if (!(max_norm > 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("clip_grad_norm: max_norm is {}, but must be above 0", max_norm));
  }
  if (!sync_gradients()) return 0;
  strategy::Strategy& strategy = impl_->strategy_of(model);
  require_gradients(strategy, "clip_grad_norm");
  if (impl_->unscale(strategy)) return std::numeric_limits<double>::infinity();
  return strategy.clip_grad_norm(max_norm);
}

void Accelerator::clip_grad_value_of(const detail::ModelRef& model, double max_value) {
  if (!(max_value > 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("clip_grad_value: max_value is {}, but must be above 0", max_value));
  }
  if (!sync_gradients()) return;
  strategy::Strategy& strategy = impl_->strategy_of(model);
  require_gradients(strategy, "clip_grad_value");
  if (!impl_->unscale(strategy)) strategy.clip_grad_value(max_value);
}

at::Tensor Accelerator::gradient(const at::Tensor& parameter) {
  for (const auto& model : impl_->models) {
    if (!model->has(parameter)) continue;
    require_gradients(*model, "gradient");
    return model->whole_gradient(model->index_of(parameter));
  }
  throw Error(ErrorCode::kUsage, "gradient: the tensor is not a parameter of a prepared model",
              {.hint = "pass a parameter of a model given to prepare"});
}

void Accelerator::for_each_tensor_of(
    const detail::ModelRef& model,
    const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  strategy::Strategy& strategy = impl_->strategy_of(model);
  strategy.synchronize();
  const auto& parameters = strategy.model().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    visit(parameters[i].name, strategy.whole_parameter(i));
  }
  for (const auto& [name, buffer] : strategy.model().buffers) visit(name, buffer);
}

}  // namespace coupler
