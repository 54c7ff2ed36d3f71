// Stream: a CUDA stream of the double, a thread that performs queued work in order. [any-thread].
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace cuda_double {

// The NCCL double launches its "kernels" with this. NULL: the default stream.
__attribute__((visibility("default"))) void enqueue(cudaStream_t stream,
                                                    std::function<void()> work);

cudaStream_t make_stream();
// Work that is already queued is still performed.
void end_stream(cudaStream_t stream);

}  // namespace cuda_double
