// One step of training: accumulation, backward, clipping, and what may be looked at in between.
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "train/accelerator_impl.h"

namespace coupler {

SyncScope Accelerator::begin_accumulate(const std::vector<detail::ModelRef>& models) {
  Impl& impl = *impl_;
  impl.scope.clear();
  for (const detail::ModelRef& model : models) impl.scope.push_back(&impl.strategy_of(model));
  ++impl.micro_steps;
  const auto loader = impl.current_loader();
  const bool last_batch = loader != nullptr && loader->at_last_batch();
  impl.sync =
      last_batch || impl.micro_steps % impl.config.training.gradient_accumulation_steps == 0;
  if (impl.sync) impl.micro_steps = 0;
  const bool reduce = impl.sync || impl.config.training.sync_each_batch;
  for (Strategy* model : impl.scope) model->set_sync(reduce);
  return SyncScope([&impl] {
    for (Strategy* model : impl.scope) model->set_sync(true);
    impl.scope.clear();
    impl.sync = true;
  });
}

SyncScope Accelerator::begin_no_sync(const std::vector<detail::ModelRef>& models) {
  std::vector<Strategy*> found;
  for (const detail::ModelRef& model : models) found.push_back(&impl_->strategy_of(model));
  for (Strategy* model : found) model->set_sync(false);
  return SyncScope([found] {
    for (Strategy* model : found) model->set_sync(true);
  });
}

void Accelerator::backward(const at::Tensor& loss) {
  Impl& impl = *impl_;
  // Models that this backward must reach on every rank: those of the scope, or the only one.
  std::vector<Strategy*> expected = impl.scope;
  if (expected.empty() && impl.models.size() == 1) expected.push_back(impl.models[0].get());
  for (Strategy* model : expected) model->begin_backward();
  const int64_t steps = impl.config.training.gradient_accumulation_steps;
  try {
    // Backward computes in the types of forward, whatever scope it is called in.
    const c10::impl::ExcludeDispatchKeyGuard outside_autocast(c10::autocast_dispatch_keyset);
    impl.scale_loss(steps == 1 ? loss : loss / static_cast<double>(steps), expected).backward();
  } catch (...) {
    for (const auto& model : impl.models) model->abandon_backward();
    throw;
  }
  for (Strategy* model : expected) model->end_backward();
}

bool Accelerator::sync_gradients() const { return impl_->sync; }

double Accelerator::clip_grad_norm_of(const detail::ModelRef& model, double max_norm) {
  if (!(max_norm > 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("clip_grad_norm: max_norm is {}, it must be above 0", max_norm));
  }
  if (!impl_->sync) return 0;
  Strategy& strategy = impl_->strategy_of(model);
  if (impl_->unscale(strategy)) return std::numeric_limits<double>::infinity();
  return strategy.clip_grad_norm(max_norm);
}

void Accelerator::clip_grad_value_of(const detail::ModelRef& model, double max_value) {
  if (!(max_value > 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("clip_grad_value: max_value is {}, it must be above 0", max_value));
  }
  if (!impl_->sync) return;
  Strategy& strategy = impl_->strategy_of(model);
  if (!impl_->unscale(strategy)) strategy.clip_grad_value(max_value);
}

at::Tensor Accelerator::gradient(const at::Tensor& parameter) {
  for (const auto& model : impl_->models) {
    if (model->has(parameter)) return model->whole_gradient(parameter);
  }
  throw Error(ErrorCode::kUsage, "gradient: the tensor is no parameter of a prepared model",
              {.hint = "pass a parameter of a model given to prepare"});
}

void Accelerator::for_each_tensor_of(
    const detail::ModelRef& model,
    const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  Strategy& strategy = impl_->strategy_of(model);
  strategy.for_each_parameter(visit);
  for (const auto& [name, buffer] : strategy.model().buffers) visit(name, buffer);
}

}  // namespace coupler
