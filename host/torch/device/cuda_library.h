// LibTorch's CUDA libraries: libtorch_cuda.so and the gigabytes it depends on. Programs do not link
// them. They are loaded with this library, before LibTorch is first queried, if a driver answers
// and has a device; COUPLER_TRAINING_DEVICE=cpu skips that. [any-thread]
#pragma once

#include <string>

namespace coupler {

// Empty if LibTorch can use a CUDA device; otherwise a human-readable reason.
const std::string& why_no_cuda();

}  // namespace coupler
