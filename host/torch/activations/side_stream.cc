#include "activations/side_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <unordered_map>

#include "device/pinned.h"

namespace coupler {
namespace {

// Also tries an event: a stream that nothing can wait for is useless.
std::optional<c10::Stream> new_stream(c10::Device device) {
  if (!can_pin(device)) return std::nullopt;
  try {
    const c10::DeviceGuard guard(device);
    const c10::Stream stream =
        c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    c10::Event event(device.type());
    event.record(stream);
    return stream;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

std::optional<c10::Stream> stream_of(c10::Device device) {
  static std::mutex mutex;
  // Never destroyed: LibTorch's threads may still use it.
  static auto* const kStreams = new std::unordered_map<c10::Device, std::optional<c10::Stream>>;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = kStreams->try_emplace(device);
  if (is_new) found->second = new_stream(device);
  return found->second;
}

void use_on(const c10::Storage& memory, const c10::Stream& stream) {
  c10::impl::VirtualGuardImpl(stream.device_type())
      .recordDataPtrOnStream(memory.data_ptr(), stream);
}

c10::Stream own_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

SideStream::SideStream(c10::Device device)
    : stream_(stream_of(device)),
      own_(stream_ ? std::optional(own_stream(device)) : std::nullopt),
      device_guard_(device),
      stream_guard_(stream_) {}

void SideStream::follow() const {
  if (!stream_) return;
  c10::Event before(own_->device_type());
  before.record(*own_);
  before.block(*stream_);
}

void SideStream::hold(const c10::Storage& memory) const {
  if (stream_) use_on(memory, *stream_);
}

std::shared_ptr<c10::Event> SideStream::mark() const {
  if (!stream_) return nullptr;
  auto event = std::make_shared<c10::Event>(stream_->device_type());
  event->record(*stream_);
  return event;
}

void SideStream::join(const std::shared_ptr<c10::Event>& mark, const c10::Storage& memory) {
  if (mark == nullptr) return;
  const c10::Stream own = own_stream(memory.device());
  mark->block(own);
  use_on(memory, own);
}

}  // namespace coupler
