// Peak memory of an example's processes, for its final output. Used by the training thread.
#pragma once

#include <ATen/ops/scalar_tensor.h>
#include <coupler/accelerator.h>

#include <cstdint>
#include <fstream>
#include <string>

// This process's peak memory, in MiB; 0 if the system does not report it.
inline int64_t peak_memory_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) / 1024;
  }
  return 0;
}

// "peak 212, 208 MiB": every rank's peak, in rank order. Collective.
inline std::string memory_per_rank(coupler::Accelerator& accelerator) {
  const at::Tensor peaks =
      accelerator.gather(at::scalar_tensor(peak_memory_mib(), at::TensorOptions(at::kLong)));
  std::string text = "peak ";
  for (int64_t rank = 0; rank < peaks.numel(); ++rank) {
    text += (rank == 0 ? "" : ", ") + std::to_string(peaks.const_data_ptr<int64_t>()[rank]);
  }
  return text + " MiB";
}
