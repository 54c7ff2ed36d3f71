// Where LibTorch is, as far as a program without LibTorch can say: what COUPLER_TORCH_ROOT names,
// else where this Coupler was built or installed to look, else where `coupler setup-torch` puts it.
// Functions without state; any thread.
#pragma once

#include <string>

namespace coupler::cli {

// What the environment names, as it is; else a folder with lib/libtorch_cpu.so; empty where there
// is none.
std::string torch_root();
// The folder that is looked at first, there or not; for messages.
std::string expected_torch_root();
// Where setup-torch installs without --prefix: /opt/coupler for root, else
// ~/.local/share/coupler.
std::string default_torch_prefix();

}  // namespace coupler::cli
