// Chooses the device a process trains on. [any-thread]
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <string>

#include "rendezvous/process_info.h"

namespace coupler::device {

// LibTorch's CUDA libraries: libtorch_cuda.so and the gigabytes it depends on. Programs do not link
// them. They are loaded with this library, before LibTorch is first queried, if a driver answers
// and has a device; COUPLER_TRAINING_DEVICE=cpu skips that. [any-thread]

// Empty if LibTorch can use a CUDA device; otherwise a human-readable reason.
const std::string& why_no_cuda();

// wanted: training.device. Without an index a process takes the device of its local rank; if there
// are fewer devices, ranks share them round-robin. Throws Error(kConfig) if it is not available.
c10::Device choose_device(const std::string& wanted, const rendezvous::ProcessInfo& process);

// Makes `device` the default of its type for LibTorch's operations on this thread.
void make_current(c10::Device device);

// The error for a device that is out of memory. [any-thread]

// Throws Error(kOutOfMemory). what: "the gathered parameters of unit 'blocks.3' (90 MiB)"; largest:
// the largest piece that must fit at once, or empty.
[[noreturn]] void throw_out_of_memory(const c10::OutOfMemoryError& cause, const std::string& what,
                                      const std::string& largest = {});

}  // namespace coupler::device
