// LibTorch's default generators. [any-thread]; to use a generator, lock its mutex.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <optional>

namespace coupler {

// The device's own default generator; none for the CPU and for devices without one.
std::optional<at::Generator> device_generator(c10::Device device);

}  // namespace coupler
