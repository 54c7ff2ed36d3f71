// Which device a process trains on. [any-thread]
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "rendezvous/process_info.h"

namespace coupler {

// wanted: training.device. Without an index a process takes the device of its local rank; where
// there are fewer, ranks share them in turn. Throws Error(kConfig) where it is not to be had.
c10::Device choose_device(const std::string& wanted, const ProcessInfo& process);

// LibTorch's operations on this thread go there where nothing else is said.
void make_current(c10::Device device);

}  // namespace coupler
