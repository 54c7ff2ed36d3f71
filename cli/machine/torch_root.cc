#include "cli/machine/torch_root.h"

#include <unistd.h>

#include <filesystem>

#include "base/environment.h"

namespace coupler::cli {
namespace {

// The folder that scripts/install-torch creates.
std::string below(const std::string& prefix) {
  return prefix + "/torch-" COUPLER_TORCH_WHEEL "/torch";
}

std::string users_prefix() {
  const std::string data = environment_text("XDG_DATA_HOME"), home = environment_text("HOME");
  return (data.empty() ? home + "/.local/share" : data) + "/coupler";
}

constexpr const char* kSystemPrefix = "/opt/coupler";

}  // namespace

std::string expected_torch_root() {
  const std::string named = environment_text("COUPLER_TORCH_ROOT");
  return named.empty() ? COUPLER_TORCH_ROOT : named;
}

std::string torch_root() {
  if (!environment_text("COUPLER_TORCH_ROOT").empty()) return expected_torch_root();
  for (const std::string& root :
       {expected_torch_root(), below(users_prefix()), below(kSystemPrefix)}) {
    std::error_code ignored;
    if (std::filesystem::exists(root + "/lib/libtorch_cpu.so", ignored)) return root;
  }
  return {};
}

std::string default_torch_prefix() { return geteuid() == 0 ? kSystemPrefix : users_prefix(); }

}  // namespace coupler::cli
