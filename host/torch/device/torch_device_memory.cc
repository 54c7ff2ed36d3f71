#include "device/torch_device_memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>

#include <utility>

#include "device/pinned.h"
#include "device/streams.h"

namespace coupler {
namespace {

at::Tensor bytes_over(const void* memory, size_t bytes, c10::Device device) {
  return over_memory(memory, static_cast<int64_t>(bytes), at::kByte, device);
}

// LibTorch allocates the memory, so its copies know that it is pinned and must be waited for.
struct HostBuffer {
  at::Tensor tensor;
  void operator()(void*) { tensor.reset(); }
};

const at::Tensor& tensor_of(const std::shared_ptr<void>& host) {
  return std::get_deleter<HostBuffer>(host)->tensor;
}

}  // namespace

at::Tensor over_memory(const void* memory, int64_t numel, c10::ScalarType type,
                       c10::Device device) {
  return at::for_blob(const_cast<void*>(memory), {numel})
      .options(at::TensorOptions(type).device(device))
      .target_device(device)
      .make_tensor();
}

void* TorchDeviceMemory::stream() const {
  return device_.is_cuda() ? current_stream(device_).native_handle() : nullptr;
}

std::shared_ptr<void> TorchDeviceMemory::host_buffer(size_t bytes) const {
  at::Tensor tensor = host_bytes(static_cast<int64_t>(bytes), device_);
  void* const memory = tensor.mutable_data_ptr();
  return {memory, HostBuffer{std::move(tensor)}};
}

void TorchDeviceMemory::copy_to_host(void* host, const void* device, size_t bytes) const {
  const c10::DeviceGuard guard(device_);
  bytes_over(host, bytes, at::kCPU).copy_(bytes_over(device, bytes, device_));
}

void TorchDeviceMemory::copy_from_host(void* device, const std::shared_ptr<void>& host,
                                       size_t bytes) const {
  const c10::DeviceGuard guard(device_);
  const at::Tensor& from = tensor_of(host);
  bytes_over(device, bytes, device_)
      .copy_(from.narrow(0, 0, static_cast<int64_t>(bytes)), /*non_blocking=*/true);
}

void TorchDeviceMemory::copy(void* to, const void* from, size_t bytes) const {
  const c10::DeviceGuard guard(device_);
  bytes_over(to, bytes, device_).copy_(bytes_over(from, bytes, device_));
}

}  // namespace coupler
