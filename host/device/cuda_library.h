// LibTorch's CUDA part, libtorch_cuda.so and the gigabytes behind it: no program links it. It is
// opened when this library is loaded, which is before anybody asks LibTorch what it can do, where a
// driver answers and has a device; COUPLER_TRAINING_DEVICE=cpu leaves it out. [any-thread]
#pragma once

#include <string>

namespace coupler {

// Empty where LibTorch can use a CUDA device, else why not, for people.
const std::string& why_no_cuda();

}  // namespace coupler
