// SideStream: copies between a device and host memory beside what the device computes. While one
// lives, what its thread gives the device goes to a stream that is there for copies alone, one a
// device. Where there are no streams the device copies and computes in turns, and copies are done
// when they return. Belongs to one thread; any number of threads may have one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace coupler {

class SideStream {
 public:
  explicit SideStream(c10::Device device);
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  // Copies are on their way when they return.
  bool beside() const { return stream_.has_value(); }
  // What comes waits for all that the thread's own stream was given before.
  void follow() const;
  // The memory is not given to others before what it was used for here is done.
  void hold(const c10::Storage& memory) const;
  // Of all that came so far; null where it is done.
  std::shared_ptr<c10::Event> mark() const;

  // For the thread's own stream: what it is given from now on comes after the mark (null: there is
  // none), and it uses the memory.
  static void join(const std::shared_ptr<c10::Event>& mark, const c10::Storage& memory);

 private:
  const std::optional<c10::Stream> stream_, own_;
  const c10::DeviceGuard device_guard_;
  const c10::OptionalStreamGuard stream_guard_;
};

}  // namespace coupler
