#include "plugin/automatic.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/process.h"
#include "plugin/bases.h"
#include "plugin/probe.h"
#include "plugin/resolve.h"

namespace coupler::plugin {
namespace {

std::string place_problem(const PluginReport& report, Spread spread) {
  if (report.can(DB_CAP_ONE_MACHINE) && spread != Spread::kOneMachine) {
    return spread == Spread::kShared
               ? "it connects the ranks of one machine, and the job is on several"
               : "it connects the ranks of one machine, which may not be all of this job";
  }
  if (report.composes_machines && spread != Spread::kShared) {
    return spread == Spread::kOneMachine
               ? "it composes transports for several machines, and the job is on one"
               : "it composes transports for several machines with several ranks each, which this "
                 "job may not have";
  }
  return "";
}

// "" if "auto" may take this backend, its bases aside, else why not.
std::string problem_of(const PluginReport& report, const Circumstances& known) {
  const bool loaded = !report.abi.empty();
  if (loaded && known.on_host && !report.can(DB_CAP_HOST_MEMORY)) {
    return "tensors are in host memory, which it does not support";
  }
  if (report.can(DB_CAP_NEEDS_MPI_LAUNCH) && known.launch == MpiLaunch::kTooLate) {
    return "mpirun did not start this process";
  }
  if (report.can(DB_CAP_NEEDS_MPI_LAUNCH) && known.launch == MpiLaunch::kPossible &&
      find_in_path("mpirun.openmpi").empty() && find_in_path("mpirun").empty()) {
    return "mpirun is not installed (Debian: openmpi-bin), and this is not an MPI launch";
  }
  if (!report.usable) return report.reason;
  return place_problem(report, known.spread);
}

std::string base_problem(const WantedBase& wanted, const Plugin& wrapper,
                         const std::vector<PluginReport>& reports,
                         const config::BackendConfig& backend, Circumstances known) {
  known.compositions = false;
  known.on_host = known.on_host || !wrapper.can(DB_CAP_CUDA_MEMORY);
  if (wanted.of_machine) known.spread = Spread::kOneMachine;
  const std::string use = use_of(wanted, backend, wrapper.name());
  std::string problem;
  if (use == "auto") {
    const std::vector<Candidate> below = judge_candidates(reports, backend, known);
    if (below.empty() || !below.front().rejection.empty()) problem = "no transport can be used";
  } else {
    const PluginReport report = try_plugin(use, backend);
    const bool loaded = !report.abi.empty();
    if (loaded) problem = memory_problem(wrapper.table(), report.capabilities);
    if (report.can(DB_CAP_NEEDS_BASE)) problem = "it is not a transport";
    if (problem.empty()) problem = problem_of(report, known);
  }
  return problem.empty() ? ""
                         : fmt::format("its base {} = \"{}\": {}", wanted.option, use, problem);
}

std::string bases_problem(const PluginReport& composition, const std::vector<PluginReport>& reports,
                          const config::BackendConfig& backend, const Circumstances& known) {
  config::BackendConfig one = backend;
  one.use = composition.path;
  one.sha256.clear();  // the pin is for what the user names
  try {
    const Plugin plugin = Plugin::load(one);
    for (const WantedBase& wanted : wanted_bases(plugin.table())) {
      std::string problem = base_problem(wanted, plugin, reports, one, known);
      if (!problem.empty()) return problem;
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

std::vector<PluginReport> probe_candidates(const config::BackendConfig& backend, bool on_host) {
  return try_plugins(found_plugin_names(backend), backend,
                     on_host ? uint64_t{DB_CAP_HOST_MEMORY} : 0);
}

std::vector<Candidate> judge_candidates(const std::vector<PluginReport>& reports,
                                        const config::BackendConfig& backend,
                                        const Circumstances& known) {
  std::vector<Candidate> result;
  for (const PluginReport& report : reports) {
    // Without a file, it is the built-in backend for one process.
    if (report.path.empty()) continue;
    if (report.can(DB_CAP_NEEDS_BASE) && !(report.composes_machines && known.compositions)) {
      continue;
    }
    result.push_back({report, problem_of(report, known)});
    std::string& rejection = result.back().rejection;
    if (rejection.empty() && report.composes_machines) {
      rejection = bases_problem(report, reports, backend, known);
    }
  }
  const auto rank = [](const Candidate& one) {
    return one.rejection.empty() ? one.report.score : -1;
  };
  std::stable_sort(result.begin(), result.end(),
                   [&](const Candidate& a, const Candidate& b) { return rank(a) > rank(b); });
  return result;
}

PluginReport choose_automatically(const config::BackendConfig& backend,
                                  const Circumstances& known) {
  const std::vector<Candidate> candidates =
      judge_candidates(probe_candidates(backend, known.on_host), backend, known);
  std::string rejected;
  for (const Candidate& one : candidates) {
    if (one.rejection.empty()) continue;
    log(LogLevel::kInfo, "plugin",
        fmt::format("backend \"auto\" passes over {}: {}", one.report.name, one.rejection));
    rejected += fmt::format("\n  {}: {}", one.report.name, one.rejection);
  }
  if (!candidates.empty() && candidates.front().rejection.empty()) {
    const PluginReport& best = candidates.front().report;
    log(LogLevel::kInfo, "plugin",
        fmt::format("backend \"auto\" is {}, whose score {} is the highest", best.name,
                    best.score));
    return best;
  }
  std::string looked;
  for (const SearchFolder& folder : search_folders(backend)) {
    looked += fmt::format("\n  {} ({})", folder.path, folder.origin);
  }
  throw Error(ErrorCode::kPlugin,
              fmt::format("backend.use = \"auto\" found no usable transport:{}\nlooked in:{}",
                          rejected, looked),
              {-1, "backend.use",
               "build or install a plugin that is a transport, or name its folder in "
               "COUPLER_PLUGIN_PATH"});
}

}  // namespace coupler::plugin
