// Chooses the device a process trains on. [any-thread]
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "rendezvous/process_info.h"

namespace coupler {

// wanted: training.device. Without an index a process takes the device of its local rank; if there
// are fewer devices, ranks share them round-robin. Throws Error(kConfig) if it is not available.
c10::Device choose_device(const std::string& wanted, const ProcessInfo& process);

// Makes `device` the default of its type for LibTorch's operations on this thread.
void make_current(c10::Device device);

}  // namespace coupler
