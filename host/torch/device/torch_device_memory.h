// TorchDeviceMemory: the memory and streams of one of LibTorch's devices, for communicators.
// Stateless; [any-thread].
#pragma once

#include <c10/core/Device.h>

#include "comm/device_memory.h"

namespace coupler {

class TorchDeviceMemory final : public DeviceMemory {
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

}  // namespace coupler
