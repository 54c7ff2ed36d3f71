#include "cli/machine/torch_root.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace coupler::cli {
namespace {

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// As scripts/install-torch names it.
std::string below(const std::string& prefix) {
  return prefix + "/torch-" COUPLER_TORCH_WHEEL "/torch";
}

std::string users_prefix() {
  const std::string data = from_environment("XDG_DATA_HOME"), home = from_environment("HOME");
  return (data.empty() ? home + "/.local/share" : data) + "/coupler";
}

constexpr const char* kSystemPrefix = "/opt/coupler";

}  // namespace

std::string expected_torch_root() {
  const std::string named = from_environment("COUPLER_TORCH_ROOT");
  return named.empty() ? COUPLER_TORCH_ROOT : named;
}

std::string torch_root() {
  if (!from_environment("COUPLER_TORCH_ROOT").empty()) return expected_torch_root();
  for (const std::string& root :
       {expected_torch_root(), below(users_prefix()), below(kSystemPrefix)}) {
    std::error_code ignored;
    if (std::filesystem::exists(root + "/lib/libtorch_cpu.so", ignored)) return root;
  }
  return {};
}

std::string default_torch_prefix() { return geteuid() == 0 ? kSystemPrefix : users_prefix(); }

}  // namespace coupler::cli
