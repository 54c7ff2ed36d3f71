#include "device/streams.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace coupler {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void hold_for_stream(const c10::DataPtr& memory) {
  const c10::impl::VirtualGuardImpl guard(memory.device().type());
  guard.recordDataPtrOnStream(memory, guard.getStream(memory.device()));
}

std::shared_ptr<c10::Event> mark_stream(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  auto event = std::make_shared<c10::Event>(device.type());
  event->record(current_stream(device));
  return event;
}

void wait_on_stream(const std::shared_ptr<c10::Event>& mark, c10::Device device) {
  if (mark != nullptr) mark->block(current_stream(device));
}

void use_own_stream(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl streams(device.type());
  streams.setDevice(device);
  streams.exchangeStream(streams.getStreamFromGlobalPool(device));
}

}  // namespace coupler
