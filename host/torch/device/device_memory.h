// TorchDeviceMemory: the memory and streams of one of LibTorch's devices, for communicators.
// Stateless; [any-thread].
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "comm/staging.h"

namespace coupler::device {

// Pinned host memory, which a device reads and writes directly. [any-thread]

// Whether LibTorch can pin memory for the device; for third-party devices it may not.
bool can_pin(c10::Device device);

// `count` bytes on the CPU, pinned if possible.
at::Tensor host_bytes(int64_t count, c10::Device device);

// Streams and events of any device of LibTorch, through its guards. [any-thread]: "the thread's
// stream" is the one that LibTorch's operations on the calling thread go to.

c10::Stream current_stream(c10::Device device);

// For memory from LibTorch's allocator: when freed, it is reused only after the work queued so far
// on the thread's stream.
void hold_for_stream(const c10::DataPtr& memory);

// Marks all work queued so far on the thread's stream; null on the CPU, where work is done when it
// is issued.
std::shared_ptr<c10::Event> mark_stream(c10::Device device);
// Makes later work on the thread's stream wait for the mark. Does nothing if the mark is null.
void wait_on_stream(const std::shared_ptr<c10::Event>& mark, c10::Device device);

// Gives this thread its own stream for all later operations, so that they overlap with other
// threads' work. Call once, on our own threads. Does nothing on the CPU.
void use_own_stream(c10::Device device);

class TorchDeviceMemory final : public comm::DeviceMemory {
 public:
  explicit TorchDeviceMemory(c10::Device device) : device_(device) {}

  int index() const override { return device_.index(); }
  bool is_cuda() const override { return device_.is_cuda(); }
  void* stream() const override;
  std::shared_ptr<void> host_buffer(size_t bytes) const override;
  void copy_to_host(void* host, const void* device, size_t bytes) const override;
  void copy_from_host(void* device, const std::shared_ptr<void>& host, size_t bytes) const override;
  void copy(void* to, const void* from, size_t bytes) const override;

 private:
  const c10::Device device_;
};

// A tensor of `numel` elements of `type` over memory of a device (or the CPU), owned by the caller.
at::Tensor over_memory(const void* memory, int64_t numel, c10::ScalarType type, c10::Device device);

// LibTorch's default generators. [any-thread]; to use a generator, lock its mutex.

// The device's own default generator; none for the CPU and for devices without one.
std::optional<at::Generator> device_generator(c10::Device device);

}  // namespace coupler::device
