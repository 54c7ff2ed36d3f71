// Mixed precision of the Accelerator: autocast, and loss scaling for fp16.
#include <ATen/Functions.h>
#include <coupler/accelerator.h>
#include <fmt/format.h>

#include <algorithm>

#include "accelerator/accelerator.h"
#include "base/log.h"
#include "precision/precision.h"

namespace coupler {

at::Tensor Accelerator::Impl::scale_loss(const at::Tensor& loss,
                                         const std::vector<strategy::Strategy*>& expected) {
  if (autocast_type && !autocast_used.exchange(true)) {
    coupler::log(
        LogLevel::kWarning, "train",
        fmt::format(
            "training.mixed_precision is {}, but there was no accelerator.autocast() before "
            "this backward: forward ran in the model's own types",
            config.training.mixed_precision));
  }
  return scaler == nullptr ? loss : scaler->scale_loss(loss, {expected.begin(), expected.end()});
}

AutocastScope Accelerator::autocast(bool enabled) {
  Impl& impl = *impl_;
  if (!impl.autocast_type) return AutocastScope(std::nullopt);
  if (enabled) impl.autocast_used = true;
  AutocastSettings settings{device().type(), *impl.autocast_type, enabled};
  // A cached copy would outlive a parameter that is released after use, so the whole model would
  // end up in memory.
  settings.cache_casts = std::all_of(impl.models.begin(), impl.models.end(), [](const auto& model) {
    return model->description().parameters_stay;
  });
  settings.fp8_gradients = precision::fp8_gradient_type(impl.config.training);
  return AutocastScope(settings);
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

}  // namespace coupler
