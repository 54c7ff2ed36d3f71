// A copy of a tensor that training goes on without. Plain function, any thread.
#pragma once

#include <ATen/core/Tensor.h>

namespace coupler::checkpoint {

// Contiguous, on the same device; into `room`, which may be undefined, where it is of that size and
// dtype: finding memory takes longer than copying, and a system that lent it elsewhere meanwhile
// takes many times as long. New memory comes in large pages where the system has them.
at::Tensor copy_apart(const at::Tensor& tensor, const at::Tensor& room);

}  // namespace coupler::checkpoint
