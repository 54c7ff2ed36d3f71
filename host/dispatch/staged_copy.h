// Copies from host memory to a device. From pageable memory a device's driver copies through a
// buffer of its own, in turns; through two pinned buffers of ours one is filled while the other one
// is on its way. [any-thread]; each thread has its buffers.
#pragma once

#include <ATen/core/Tensor.h>

namespace coupler {

// Both contiguous, of one dimension and the same size; `from` on the CPU. When it returns `from`
// may be changed; `to` is there for what is issued on the thread's stream afterwards.
void staged_copy(const at::Tensor& from, const at::Tensor& to);

}  // namespace coupler
