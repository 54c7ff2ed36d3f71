// Host memory that a device reads and writes by itself. [any-thread]
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace coupler {

// Whether LibTorch has such memory for the device. A device of somebody else's may have none.
bool can_pin(c10::Device device);

// On the CPU, pinned where that can be.
at::Tensor host_bytes(int64_t count, c10::Device device);

}  // namespace coupler
