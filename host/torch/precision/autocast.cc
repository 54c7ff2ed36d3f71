#include "precision/autocast.h"

#include <ATen/autocast_mode.h>
#include <coupler/autocast.h>

#include "precision/fp8_linear.h"

namespace coupler {

AutocastSettings autocast_now() {
  // Prefers a device on which autocast is enabled: the CPU's settings do not apply there.
  auto device = c10::DeviceType::CPU;
  for (const c10::DeviceType other : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    if (other != device && at::autocast::is_autocast_enabled(other)) {
      device = other;
      break;
    }
  }
  AutocastSettings settings{.device = device,
                            .type = at::autocast::get_autocast_dtype(device),
                            .enabled = at::autocast::is_autocast_enabled(device),
                            .cache_casts = false};
  settings.fp8_gradients = set_fp8_linear(std::nullopt);
  set_fp8_linear(settings.fp8_gradients);
  return settings;
}

AutocastScope::AutocastScope(const std::optional<AutocastSettings>& settings) {
  if (!settings) return;
  const c10::DeviceType device = settings->device;
  before_ = AutocastSettings{device, at::autocast::get_autocast_dtype(device),
                             at::autocast::is_autocast_enabled(device),
                             at::autocast::is_autocast_cache_enabled()};
  const bool fp8 = settings->enabled && settings->fp8_gradients;
  before_->fp8_gradients = set_fp8_linear(fp8 ? settings->fp8_gradients : std::nullopt);
  at::autocast::set_autocast_enabled(device, settings->enabled);
  at::autocast::set_autocast_dtype(device, settings->type);
  at::autocast::increment_nesting();
  at::autocast::set_autocast_cache_enabled(settings->cache_casts);
}

AutocastScope::~AutocastScope() {
  if (!before_) return;
  set_fp8_linear(before_->fp8_gradients);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(before_->device, before_->enabled);
  at::autocast::set_autocast_dtype(before_->device, before_->type);
  at::autocast::set_autocast_cache_enabled(before_->cache_casts);
}

}  // namespace coupler
