// Copies a tensor so that training can go on while the copy is saved. Plain function, any thread.
#pragma once

#include <ATen/core/Tensor.h>

namespace coupler::checkpoint {

// Returns a contiguous copy in host memory. It reuses `room`, which may be undefined, if that has
// the same size and dtype: allocating memory takes longer than copying, and many times longer once
// the system has used the memory elsewhere. New memory uses huge pages if the system has them.
at::Tensor copy_apart(const at::Tensor& tensor, const at::Tensor& room);

}  // namespace coupler::checkpoint
