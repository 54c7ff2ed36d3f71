// DeviceRates: how fast devices read weights and how fast weights move between them; what the
// "optimal" device map minimises the time with. A value; any thread. Bytes per second.
#pragma once

#include <map>
#include <string>

namespace coupler {

// How fast devices compute and copy, in bytes a second, for the mode "optimal" and predict_run.
struct DeviceRates {
  // How fast a device computes, as bytes of weights used a second. With few tokens at a time that
  // is the rate at which it reads its memory.
  double accelerator_compute = 1e12;
  double cpu_compute = 2e10;
  // Of single accelerators that differ, by number.
  std::map<int, double> accelerators;

  // Copies between places, bytes a second.
  double cpu_to_accelerator = 1.2e10;
  double disk_to_cpu = 1e9;
  // For handing activations from one device to another, once: seconds.
  double hop_seconds = 5e-5;

  // That of an accelerator by number.
  double compute_of(int accelerator) const {
    const auto found = accelerators.find(accelerator);
    return found == accelerators.end() ? accelerator_compute : found->second;
  }
};

// The defaults with what can be measured here without an accelerator, in a fifth of a second: the
// rate at which all cores read memory (cpu_compute), the rate of memory copies as an upper bound of
// cpu_to_accelerator, and the rate of reading a file in `folder` past the page cache (disk_to_cpu;
// through it where the file system knows no other way). Writes and removes a file of up to 32 MiB.
// Throws Error(kIo) naming the folder where it cannot.
DeviceRates measure_rates(const std::string& folder = ".");

}  // namespace coupler
