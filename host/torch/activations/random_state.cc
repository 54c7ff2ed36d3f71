#include "activations/random_state.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "device/generator.h"

namespace coupler {

RandomState::RandomState() {
  const std::optional<c10::DeviceType> type = at::getAccelerator();
  if (!type) return;
  device_ = c10::impl::VirtualGuardImpl(*type).getDevice();
  std::optional<at::Generator> generator = device_generator(*device_);
  if (!generator) return;
  const std::lock_guard lock(generator->mutex());
  on_device_ = generator->get_state();
}

void RandomState::restore() const {
  write_generator(cpu_);
  if (!on_device_.defined()) return;
  at::Generator generator = *device_generator(*device_);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(on_device_);
}

}  // namespace coupler
