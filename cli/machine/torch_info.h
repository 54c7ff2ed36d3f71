// What LibTorch's files say about it, without loading it. Plain functions; no thread rule.
#pragma once

#include <string>

namespace coupler::cli {

struct TorchInfo {
  std::string root;     // as torch_root() has it; "": there is none
  std::string version;  // "2.11.0+cu130"; "": its files do not say
  std::string cuda;     // the version of CUDA that it was built for; "": the CPU only
};
TorchInfo torch_info();

// "2.11.0+cu130 (built for CUDA 13.0), /opt/…", or that there is none and what to do.
std::string describe(const TorchInfo& torch);

// NVIDIA's wheel of NCCL beside LibTorch, or a libnccl of the system's: "2.28.9, /…/libnccl.so.2",
// "none".
std::string nccl(const TorchInfo& torch);

}  // namespace coupler::cli
