// DeviceRates: how fast devices read weights and how fast weights move between them. The "optimal"
// device map minimizes time by these. A value; any thread. Bytes per second.
#pragma once

#include <map>
#include <string>

namespace coupler {

// How fast devices compute and copy, in bytes per second, for the mode "optimal" and predict_run.
struct DeviceRates {
  // Compute rate of a device, in bytes of weights used per second. With few tokens at a time, that
  // is its memory bandwidth.
  double accelerator_compute = 1e12;
  double cpu_compute = 2e10;
  // Compute rates of individual accelerators that differ, by number.
  std::map<int, double> accelerators;

  // Copy rates, in bytes per second.
  double cpu_to_accelerator = 1.2e10;
  double disk_to_cpu = 1e9;
  // Time to pass activations from one device to another once, in seconds.
  double hop_seconds = 5e-5;

  // The compute rate of an accelerator by number.
  double compute_of(int accelerator) const {
    const auto found = accelerators.find(accelerator);
    return found == accelerators.end() ? accelerator_compute : found->second;
  }
};

// Returns the defaults with the rates that can be measured on this machine without an accelerator,
// in a fifth of a second: the memory bandwidth of all cores (cpu_compute), the rate of memory
// copies as an upper bound for cpu_to_accelerator, and the rate of reading a file in `folder`
// bypassing the page cache (disk_to_cpu; through the cache if the file system cannot bypass it).
// Writes and removes a file of up to 32 MiB; throws Error(kIo) naming the folder if that fails.
DeviceRates measure_rates(const std::string& folder = ".");

}  // namespace coupler
