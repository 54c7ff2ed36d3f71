#include <coupler/error.h>
#include <fmt/format.h>

#include "commands.h"
#include "launch_modes.h"
#include "launch_plan.h"
#include "output_relay.h"
#include "plugin/plugin.h"

namespace coupler::cli {
namespace {

// What moves the bytes: the backend itself, or the base of a wrapper or sharding plugin.
std::string transport_of(const Config& config) {
  const auto found = config.backend.options.find(config.backend.use);
  if (found != config.backend.options.end()) {
    for (const PluginOption& option : found->second) {
      const auto* base = std::get_if<std::string>(&option.value);
      if (option.key == "base" && base != nullptr) {
        return *base;
      }
    }
  }
  return config.backend.use;
}

bool needs_mpirun(const Config& config, const std::string& transport) {
  if (transport.find('/') == std::string::npos) {
    return transport == "mpi";
  }
  BackendConfig backend = config.backend;
  backend.use = transport;
  return (Plugin::load(backend).table().capabilities & DB_CAP_NEEDS_MPI_LAUNCH) != 0;
}

}  // namespace

int run_launch(int argc, char** argv) {
  LaunchPlan plan = make_launch_plan(argc, argv);
  if (plan.help) {
    write_all(1, kLaunchUsage);
    return 0;
  }
  if (plan.processes == 1) {
    return launch_local(plan);  // one process needs no backend
  }
  if (plan.config.backend.use == "auto") {
    // Resolved once and here, so that all ranks agree, and since mpirun must be chosen first.
    plan.config.backend.use = resolve_auto(plan.config.backend, false);
    plan.overrides.push_back("backend.use=" + plan.config.backend.use);
  }
  const auto transport = transport_of(plan.config);
  return needs_mpirun(plan.config, transport) ? launch_mpi(plan) : launch_local(plan);
}

}  // namespace coupler::cli
