#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/process.h"
#include "cli/doctor/checks.h"
#include "cli/machine/system_info.h"
#include "cli/plugins/plugins.h"
#include "cli/text/output.h"
#include "comm/raw_communicator.h"
#include "plugin/plugin.h"
#include "plugin/resolve.h"

namespace coupler::cli {
namespace {

// The install command in a plugin's reason, as in "… (Debian: apt-get install libgloo0)"; or "".
std::string command_in(const std::string& reason) {
  for (const std::string_view start : {"apt-get install ", "apt install "}) {
    const size_t at = reason.find(start);
    if (at == std::string::npos) continue;
    const size_t packages = at + start.size();
    return install_command(
        reason.substr(packages, reason.find_first_of(");\n", packages) - packages));
  }
  return "";
}

std::string fix_of(const plugin::PluginReport& report) {
  if (std::string hint = hint_in(report.reason); !hint.empty()) return one_line(hint);
  if (std::string command = command_in(report.reason); !command.empty()) return command;
  if (report.can(DB_CAP_NEEDS_MPI_LAUNCH) || report.reason.find("libmpi") != std::string::npos) {
    return install_command("openmpi-bin");
  }
  if (report.can(DB_CAP_CUDA_MEMORY) && !report.can(DB_CAP_HOST_MEMORY)) {
    return gpu_info().cards == 0 ? "nothing to do on a machine without NVIDIA GPUs"
                                 : "see the findings about GPUs";
  }
  if (report.reason.find("cannot open shared object file") != std::string::npos) {
    return "install the missing library, or add its folder to LD_LIBRARY_PATH";
  }
  return "ask the backend's author, or let Coupler choose another one: -o backend.use=auto";
}

Finding row(const plugin::PluginReport& report) {
  const std::string name = report.version.empty() ? one_line(report.name)
                                                  : fmt::format("{} {}", one_line(report.name),
                                                                one_line(report.version));
  if (report.usable) return {Level::kOk, fmt::format("{}: {}", name, short_reason(report))};
  return {Level::kNote,
          fmt::format("{} cannot be used: {}", name, one_line(without_hint(report.reason))),
          "backend.use and base cannot name it; \"auto\" skips it", fix_of(report)};
}

// What a job with this configuration would run over, determined as its launcher does.
Finding planned(const config::Config& config) {
  const std::string named = fmt::format("backend.use = \"{}\"", config.backend.use);
  try {
    const plugin::TransportChoice plan =
        plugin::choose_transport(config.backend, plugin::MpiLaunch::kPossible,
                                 config.training.device == "cpu", plugin::Spread::kOneMachine);
    if (plan.needs_mpi_launch && find_in_path("mpirun").empty() &&
        find_in_path("mpirun.openmpi").empty()) {
      return {Level::kError, fmt::format("{} needs mpirun, which is not in PATH", named),
              "coupler launch cannot start its processes",
              install_command("openmpi-bin") + ", or -o backend.use=auto", 3};
    }
    config::BackendConfig backend = config.backend;
    backend.use = plan.use;
    const plugin::Plugin plugin = plugin::Plugin::load(backend);
    const comm::PluginOptions options(plugin.table(), backend);
    return {Level::kOk, fmt::format("{}: processes would use {}{}", named, plan.use,
                                    plan.transport == plan.use ? "" : " over " + plan.transport)};
  } catch (const Error& error) {
    Finding finding = finding_of(error, "the configuration requires it, so no job can start",
                                 "see the finding about this backend above");
    // A single process needs no transport.
    if (config.backend.use == "auto" && config.launch.processes == 1) {
      finding.level = Level::kWarning;
      finding.why = "a job with one process runs, a job with several does not";
    }
    return finding;
  }
}

}  // namespace

Findings check_backends(const config::Config& config) {
  Findings findings;
  const std::vector<plugin::PluginReport> reports = plugin::list_plugins(config.backend);
  std::transform(reports.begin(), reports.end(), std::back_inserter(findings), row);
  findings.push_back(planned(config));
  return findings;
}

Findings check_mpi(const config::Config&) {
  const MpiInfo mpi = mpi_info({"mpirun.openmpi", "mpirun"});
  if (mpi.path.empty()) {
    return {{Level::kNote, "mpirun is not in PATH", "a backend over MPI cannot start its processes",
             install_command("openmpi-bin")}};
  }
  if (mpi.version.empty()) {
    return {{Level::kWarning, describe(mpi), "a backend over MPI probably cannot start",
             install_command("--reinstall openmpi-bin")}};
  }
  if (!is_open_mpi(mpi.version)) {
    return {{Level::kNote,
             fmt::format("{} does not belong to Open MPI ({})", mpi.path, one_line(mpi.version)),
             "a backend over MPI needs Open MPI; --via mpirun accepts either",
             install_command("openmpi-bin")}};
  }
  Findings findings = {{Level::kOk, one_line(describe(mpi))}};
  if (geteuid() == 0 && (std::getenv("OMPI_ALLOW_RUN_AS_ROOT") == nullptr ||
                         std::getenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM") == nullptr)) {
    findings.push_back(
        {Level::kNote, "you are root, and mpirun refuses to run as root",
         "coupler launch sets the two variables that allow it; your own mpirun needs them, too",
         "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"});
  }
  return findings;
}

}  // namespace coupler::cli
