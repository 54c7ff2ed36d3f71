// Libraries: libcudart and libnccl of this process, opened when somebody first asks whether they
// are there, and never closed. [any-thread].
//
// Where each is looked for: what the program has loaded already (LibTorch brings both); the folders
// of COUPLER_NCCL_PATH; beside LibTorch, as pip lays the wheels out; the system. Two copies of NCCL
// in one process would each think that the GPUs are theirs, so a second one is an error.
#pragma once

#include <string>

#include "common/error.h"
#include "nccl/symbols.h"

namespace db::nccl {

struct Libraries {
  std::string problem;  // why GPUs cannot be used here; empty: they can
  Cuda cuda;            // complete where problem is empty, as is everything below
  Nccl nccl;            // but for the optional functions
  std::string cuda_path, nccl_path;
  int runtime_version = 0, driver_version = 0;  // 13000 is CUDA 13.0
  int nccl_version = 0;                         // 22809 is NCCL 2.28.9
  int devices = 0;
};

const Libraries& libraries();

// For code that runs only where libraries().problem is empty.
inline const Cuda& cuda() { return libraries().cuda; }
inline const Nccl& nccl() { return libraries().nccl; }

// "NCCL 2.28.9 (/path), CUDA 13.0 (/path), driver for CUDA 13.0, 8 devices".
std::string describe(const Libraries& found);

// A failure that names both paths where the process has another NCCL by now.
Failure check_single_nccl();

}  // namespace db::nccl
