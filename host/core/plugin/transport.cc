#include "plugin/transport.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include "config/wrapper_base.h"
#include "plugin/plugin.h"
#include "plugin/trial.h"

namespace coupler {
namespace {

// The plugin's report; throws Error if it cannot be used.
PluginReport usable(const std::string& use, const BackendConfig& backend) {
  PluginReport report = try_plugin(use, backend);
  // A plugin that needs mpirun can only judge inside it; the launcher checks for mpirun itself.
  if (report.usable || report.needs_mpi_launch) return report;
  // A loaded plugin itself reports why it cannot work here; else the message names the file.
  const bool loaded = !report.abi.empty();
  throw Error(
      ErrorCode::kPlugin,
      loaded ? fmt::format("backend \"{}\" ({}) cannot be used here: {}", report.name, report.path,
                           report.reason)
             : report.reason,
      {-1, report.path, loaded ? "`coupler plugins` shows what can be used on this machine" : ""});
}

}  // namespace

TransportPlan plan_transport(const BackendConfig& backend, MpiLaunch mpi, bool on_host) {
  TransportPlan plan;
  plan.use = backend.use;
  if (plan.use == "auto") {
    plan.use = resolve_auto(backend, mpi, on_host);
    plan.overrides.push_back(fmt::format("backend.use=\"{}\"", plan.use));
  }
  plan.transport = plan.use;
  PluginReport report = usable(plan.use, backend);
  if (report.needs_base) {
    const std::string wrapper = report.name;
    plan.transport = wrapper_base(backend, wrapper);
    if (plan.transport == "auto") {
      plan.transport = resolve_auto(backend, mpi, on_host);
      plan.overrides.push_back(fmt::format("backend.{}.base=\"{}\"", wrapper, plan.transport));
    }
    BackendConfig below = backend;
    below.sha256.clear();  // the pin is the wrapper's
    report = usable(plan.transport, below);
    if (report.needs_base) {
      throw Error(ErrorCode::kConfig,
                  fmt::format("backend.{}.base = \"{}\" needs a base itself; a base must be a "
                              "transport",
                              wrapper, plan.transport),
                  {-1, fmt::format("backend.{}.base", wrapper), "name gloo_cpu, mpi or nccl"});
    }
  }
  plan.needs_mpi_launch = report.needs_mpi_launch;
  return plan;
}

}  // namespace coupler
