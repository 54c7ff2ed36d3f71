// LibTorch's default generators. [any-thread] as theirs: lock the generator's mutex.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <optional>

namespace coupler {

// The device's own; none for the CPU, whose everybody knows, and for devices that have none.
std::optional<at::Generator> device_generator(c10::Device device);

}  // namespace coupler
