// Finds LibTorch without loading it: in COUPLER_TORCH_ROOT, else where this Coupler was built or
// installed to look, else where `coupler setup-torch` installs it. Stateless functions, callable
// from any thread.
#pragma once

#include <string>

namespace coupler::cli {

// COUPLER_TORCH_ROOT unchecked, if it is set; else a folder that contains lib/libtorch_cpu.so; ""
// if none does.
std::string torch_root();
// The folder that is searched first, whether or not it exists; for messages.
std::string expected_torch_root();
// Where setup-torch installs without --prefix: /opt/coupler for root, else
// ~/.local/share/coupler.
std::string default_torch_prefix();

}  // namespace coupler::cli
