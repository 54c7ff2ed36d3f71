#include "device/device_memory.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <utility>

namespace coupler::device {

bool can_pin(c10::Device device) {
  return !device.is_privateuseone() || at::isPrivateUse1HooksRegistered();
}

at::Tensor host_bytes(int64_t count, c10::Device device) {
  return at::empty({count}, at::TensorOptions(at::kByte).pinned_memory(can_pin(device)));
}

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

std::optional<at::Generator> device_generator(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  try {
    return at::globalContext().defaultGenerator(device);
  } catch (const c10::Error&) {
    return std::nullopt;  // a third-party device, which draws from the CPU's generator
  }
}

}  // namespace coupler::device
