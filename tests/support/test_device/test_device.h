// A test double of an accelerator: two devices of the PrivateUse1 type, whose memory is counted,
// and whose operations run on copies on the CPU. As with a GPU, the host cannot access the memory
// at a device address: whoever tries gets a segmentation fault. LibTorch does not mix their tensors
// with those of other devices, so a model that runs was placed correctly. Registered once per
// process. [any-thread]
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace coupler::testing {

// 0 or 1. Registers the double on its first call: before the Accelerator looks for a device, and
// never in a process that uses a real one, since LibTorch takes a registered double for the
// process's only accelerator.
c10::Device test_device(int index);
// Registers the double if `coupler launch -o training.device=…` names it.
bool register_if_chosen();
at::Tensor on_device(const at::Tensor& values);  // a copy on device 0

size_t device_bytes(int index);       // currently allocated
size_t most_device_bytes(int index);  // since reset_device_bytes
void reset_device_bytes();
// The limit of allocated bytes per device; 0: no limit. An allocation beyond it throws LibTorch's
// OutOfMemoryError.
void limit_device_bytes(size_t most);

// The stream operations of the action, run on this thread, in order: "1 waits for 0", "1 copies",
// "1 holds memory". Stream 0 is the default.
std::vector<std::string> streams_during(const std::function<void()>& action);

}  // namespace coupler::testing
