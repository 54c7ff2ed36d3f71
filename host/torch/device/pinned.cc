#include "device/pinned.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>

namespace coupler {

bool can_pin(c10::Device device) {
  return !device.is_privateuseone() || at::isPrivateUse1HooksRegistered();
}

at::Tensor host_bytes(int64_t count, c10::Device device) {
  return at::empty({count}, at::TensorOptions(at::kByte).pinned_memory(can_pin(device)));
}

}  // namespace coupler
