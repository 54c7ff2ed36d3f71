#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "cli/doctor/checks.h"
#include "cli/machine/torch_info.h"
#include "cli/machine/torch_root.h"
#include "cli/text/table.h"

namespace coupler::cli {
namespace {

constexpr const char* kBuiltFor = COUPLER_TORCH_WHEEL;

// "2.11" of "2.11.0+cu130".
std::string minor_of(const std::string& version) {
  const size_t first = version.find('.');
  return version.substr(0, version.find('.', first == std::string::npos ? first : first + 1));
}

Finding missing(const std::string& where) {
  const char* const named = std::getenv("COUPLER_TORCH_ROOT");
  const bool own = named != nullptr && *named != '\0';
  return {Level::kError,
          fmt::format("LibTorch not found: {}/lib/libtorch_cpu.so does not exist", where),
          "training programs cannot be built or started",
          own ? "set COUPLER_TORCH_ROOT to the folder that contains lib/libtorch_cpu.so, or unset "
                "it and run: coupler setup-torch"
              : "coupler setup-torch"};
}

}  // namespace

Findings check_torch(const Config&) {
  const TorchInfo torch = torch_info();
  const std::string library = torch.root + "/lib/libtorch_cpu.so";
  std::error_code unreadable;
  if (torch.root.empty() || !std::filesystem::exists(library, unreadable)) {
    return {missing(torch.root.empty() ? expected_torch_root() : torch.root)};
  }
  if (dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    return {{Level::kError, one_line(fmt::format("LibTorch cannot be loaded: {}", dlerror())),
             "training programs cannot be started",
             "reinstall it: remove " + torch.root + ", then run coupler setup-torch"}};
  }
  if (torch.version.empty()) {
    return {
        {Level::kWarning,
         fmt::format("LibTorch in {} loads, but its version is unknown", torch.root),
         fmt::format("Coupler was built for {}; with another minor version, programs crash or do "
                     "not start",
                     kBuiltFor),
         "coupler setup-torch, and unset COUPLER_TORCH_ROOT"}};
  }
  if (minor_of(torch.version) != minor_of(kBuiltFor)) {
    return {{Level::kWarning, fmt::format("LibTorch {} in {}", torch.version, torch.root),
             fmt::format("Coupler was built for {}; libcoupler works only with that minor version",
                         kBuiltFor),
             "coupler setup-torch, and unset COUPLER_TORCH_ROOT; or rebuild Coupler with "
             "-DCOUPLER_TORCH_ROOT=" +
                 torch.root}};
  }
  return {{Level::kOk, describe(torch) + "; its libraries load"}};
}

}  // namespace coupler::cli
