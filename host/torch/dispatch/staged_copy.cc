#include "dispatch/staged_copy.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <optional>

#include "device/pinned.h"

namespace coupler {
namespace {

constexpr int64_t kBufferBytes = int64_t{16} << 20;

struct Buffer {
  at::Tensor pinned;
  std::optional<c10::Event> sent;  // recorded after the last copy from it
};

class Ring {
 public:
  Buffer& next(c10::Device device) {
    turn_ = (turn_ + 1) % buffers_.size();
    Buffer& buffer = buffers_[turn_];
    if (!buffer.pinned.defined()) {
      buffer.pinned = host_bytes(kBufferBytes, device);
      buffer.sent.emplace(device.type());
      return buffer;
    }
    buffer.sent->synchronize();
    return buffer;
  }

 private:
  std::array<Buffer, 2> buffers_;
  size_t turn_ = 0;
};

}  // namespace

void staged_copy(const at::Tensor& from, const at::Tensor& to) {
  if (to.is_cpu() || !can_pin(to.device()) || from.is_pinned()) {
    to.copy_(from);
    return;
  }
  static thread_local Ring ring;  // a process has only one kind of accelerator
  const c10::DeviceGuard guard(to.device());
  const c10::impl::VirtualGuardImpl streams(to.device().type());
  const int64_t step = kBufferBytes / static_cast<int64_t>(from.element_size());
  for (int64_t at = 0; at < from.numel(); at += step) {
    const int64_t end = std::min(from.numel(), at + step);
    Buffer& buffer = ring.next(to.device());
    const at::Tensor staged = buffer.pinned.view(from.scalar_type()).slice(0, 0, end - at);
    staged.copy_(from.slice(0, at, end));
    to.slice(0, at, end).copy_(staged, /*non_blocking=*/true);
    buffer.sent->record(streams.getStream(to.device()));
  }
}

}  // namespace coupler
