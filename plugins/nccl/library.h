// Libraries: libcudart and libnccl of this process, opened on first use and never closed.
// [any-thread].
//
// Search order for each: what the program has already loaded (LibTorch brings both); the folders of
// COUPLER_NCCL_PATH; next to LibTorch, where pip puts the wheels; the system. Two copies of NCCL in
// one process would both assume that they own the GPUs, so a second one is an error.
#pragma once

#include <string>

#include "common/error.h"
#include "nccl/symbols.h"

namespace db::nccl {

struct Libraries {
  std::string problem;  // why GPUs cannot be used here; empty: they can
  Cuda cuda;            // complete if problem is empty, as is everything below
  Nccl nccl;            // except the optional functions
  std::string cuda_path, nccl_path;
  int runtime_version = 0, driver_version = 0;  // 13000 is CUDA 13.0
  int nccl_version = 0;                         // 22809 is NCCL 2.28.9
  int devices = 0;
};

const Libraries& libraries();

// For code that runs only if libraries().problem is empty.
inline const Cuda& cuda() { return libraries().cuda; }
inline const Nccl& nccl() { return libraries().nccl; }

// "NCCL 2.28.9 (/path), CUDA runtime 13.0 (/path), driver for CUDA 13.0, 8 devices".
std::string describe(const Libraries& found);

// A failure that names both paths if the process has loaded a second NCCL by now.
Failure check_single_nccl();

}  // namespace db::nccl
