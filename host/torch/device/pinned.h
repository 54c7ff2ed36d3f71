// Pinned host memory, which a device reads and writes directly. [any-thread]
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace coupler {

// Whether LibTorch can pin memory for the device; for third-party devices it may not.
bool can_pin(c10::Device device);

// `count` bytes on the CPU, pinned if possible.
at::Tensor host_bytes(int64_t count, c10::Device device);

}  // namespace coupler
