// A test double of an accelerator: two devices of LibTorch's kind for others (PrivateUse1), whose
// memory is host memory that is counted, and whose operations run on copies on the CPU. What is on
// one of them LibTorch does not mix with what is on another device, so a model that runs lay where
// it had to. Registered once in a process. [any-thread]
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace coupler::testing {

// 0 or 1.
c10::Device test_device(int index);
at::Tensor on_device(const at::Tensor& values);  // a copy on device 0

size_t device_bytes(int index);       // allocated now
size_t most_device_bytes(int index);  // since reset_device_bytes
void reset_device_bytes();
// What an allocation may make the bytes of a device; 0: no limit. Beyond it LibTorch's
// OutOfMemoryError is thrown.
void limit_device_bytes(size_t most);

// What the action, on this thread, gives the devices' streams, in order: "1 waits for 0", "1
// copies", "1 holds memory". 0 is where all begin.
std::vector<std::string> streams_during(const std::function<void()>& action);

}  // namespace coupler::testing
