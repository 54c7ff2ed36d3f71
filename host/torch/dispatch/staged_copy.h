// Copies from host memory to a device. For pageable memory, the driver alternates between filling
// its own buffer and sending it. With two pinned buffers of ours, one is filled while the other is
// in flight. [any-thread]; each thread has its own buffers.
#pragma once

#include <ATen/core/Tensor.h>

namespace coupler {

// Both contiguous, one-dimensional and of the same size; `from` is on the CPU. Once it returns,
// `from` may be changed, and `to` is valid for work issued on the thread's stream afterwards.
void staged_copy(const at::Tensor& from, const at::Tensor& to);

}  // namespace coupler
