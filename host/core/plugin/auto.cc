#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/log.h"
#include "plugin/plugin.h"
#include "plugin/search.h"
#include "plugin/trial.h"

namespace coupler {
namespace {

bool is_found(const std::string& name, const BackendConfig& backend) {
  for (const FoundPlugin& plugin : found_plugins(backend)) {
    if (plugin.name == name) return true;
  }
  return false;
}

// Whether the shell would find the program.
bool on_path(std::string_view program) {
  const char* text = std::getenv("PATH");
  std::string_view path = text != nullptr ? text : "/usr/bin:/bin";
  while (!path.empty()) {
    const std::string_view folder = path.substr(0, path.find(':'));
    if (access(fmt::format("{}/{}", folder, program).c_str(), X_OK) == 0) return true;
    path.remove_prefix(std::min(path.size(), folder.size() + 1));
  }
  return false;
}

// "" if the candidate may be used, else why not.
std::string rejection(const std::string& name, const BackendConfig& backend, MpiLaunch mpi,
                      bool on_host) {
  if (name == "nccl" && on_host) return "tensors are in host memory, which it does not support";
  if (!is_found(name, backend)) return "no such plugin was found";
  if (name == "mpi" && mpi == MpiLaunch::kTooLate) return "mpirun did not start this process";
  if (name == "mpi" && mpi == MpiLaunch::kPossible && !on_path("mpirun.openmpi") &&
      !on_path("mpirun")) {
    return "mpirun is not installed (Debian: openmpi-bin), and this is not an MPI launch";
  }
  const PluginReport report = try_plugin(name, backend);
  if (report.needs_base) return "it needs a base and is not a transport";
  return report.usable ? "" : report.reason;
}

}  // namespace

std::string resolve_auto(const BackendConfig& backend, MpiLaunch mpi, bool on_host) {
  std::string rejected;
  for (const char* name : {"nccl", "mpi", "gloo_cpu"}) {
    const std::string reason = rejection(name, backend, mpi, on_host);
    if (reason.empty()) {
      log(LogLevel::kInfo, "plugin", fmt::format("backend \"auto\" is {}", name));
      return name;
    }
    log(LogLevel::kInfo, "plugin",
        fmt::format("backend \"auto\" passes over {}: {}", name, reason));
    rejected += fmt::format("\n  {}: {}", name, reason);
  }
  std::string looked;
  for (const SearchFolder& folder : search_folders(backend)) {
    looked += fmt::format("\n  {} ({})", folder.path, folder.origin);
  }
  throw Error(ErrorCode::kPlugin,
              fmt::format("backend.use = \"auto\" found no usable transport:{}\nlooked in:{}",
                          rejected, looked),
              {-1, "backend.use",
               "build or install the gloo_cpu plugin, or name its folder in COUPLER_PLUGIN_PATH"});
}

}  // namespace coupler
