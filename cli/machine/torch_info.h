// Facts from LibTorch's files, without loading it. Plain functions, callable from any thread.
#pragma once

#include <string>

namespace coupler::cli {

// Finds LibTorch without loading it: in COUPLER_TORCH_ROOT, else where this Coupler was built or
// installed to look, else where `coupler setup-torch` installs it. Stateless functions, callable
// from any thread.

// COUPLER_TORCH_ROOT unchecked, if it is set; else a folder that contains lib/libtorch_cpu.so; ""
// if none does.
std::string torch_root();
// The folder that is searched first, whether or not it exists; for messages.
std::string expected_torch_root();
// Where setup-torch installs without --prefix: /opt/coupler for root, else
// ~/.local/share/coupler.
std::string default_torch_prefix();

struct TorchInfo {
  std::string root;     // as from torch_root(); "": not found
  std::string version;  // "2.11.0+cu130"; "": unknown
  std::string cuda;     // the CUDA version it was built for; "": CPU only
};
TorchInfo torch_info();

// "2.11.0+cu130, /opt/… (built for CUDA 13.0)", or where it is missing and what to do.
std::string describe(const TorchInfo& torch);

// The NCCL of COUPLER_NCCL_PATH, of NVIDIA's wheel next to LibTorch, or of the system, in this
// order: "2.28.9, /…/libnccl.so.2"; or "none".
std::string nccl_version(const TorchInfo& torch);

}  // namespace coupler::cli
