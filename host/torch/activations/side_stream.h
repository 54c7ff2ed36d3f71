// SideStream: overlaps copies between a device and host memory with the device's computation. While
// one is alive, its thread's work on the device goes to a stream used only for copies, one per
// device. On devices without streams, copies and computation take turns, and copies are complete
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

  // Whether copies may still be in flight when they return.
  bool beside() const { return stream_.has_value(); }
  // Makes later work wait for all work queued so far on the thread's own stream.
  void follow() const;
  // Keeps the memory from being reused before the work queued here is done.
  void hold(const c10::Storage& memory) const;
  // Marks all work queued so far; null if the device has no streams and the work is done.
  std::shared_ptr<c10::Event> mark() const;

  // Makes later work on the thread's own stream wait for the mark (null: does nothing) and records
  // that the stream uses the memory.
  static void join(const std::shared_ptr<c10::Event>& mark, const c10::Storage& memory);

 private:
  const std::optional<c10::Stream> stream_, own_;
  const c10::DeviceGuard device_guard_;
  const c10::OptionalStreamGuard stream_guard_;
};

}  // namespace coupler
