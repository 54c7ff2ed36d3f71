#include "device/generator.h"

#include <ATen/Context.h>

namespace coupler {

std::optional<at::Generator> device_generator(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  try {
    return at::globalContext().defaultGenerator(device);
  } catch (const c10::Error&) {
    return std::nullopt;  // a third-party device, which draws from the CPU's generator
  }
}

}  // namespace coupler
