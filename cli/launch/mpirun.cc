#include "cli/launch/mpirun.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/process.h"
#include "base/user_folders.h"
#include "cli/launch/network_job.h"
#include "cli/launch/rank_exit.h"
#include "cli/machine/cpu_binding.h"
#include "cli/machine/system_info.h"
#include "cli/process/capture_output.h"
#include "plugin/probe.h"

namespace coupler::cli {
namespace {

using Words = std::vector<std::string>;

void append(Words& arguments, const Words& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
}

const char* bind_word(Bind bind) {
  return bind == Bind::kCore ? "core" : bind == Bind::kNuma ? "numa" : "none";
}

bool says(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Open MPI passes only the variables named by -x to other machines.
Words passed_variables(const Variables& added) {
  std::vector<std::string> names;
  for (const auto& variable : environment_with(added)) {
    const auto name = variable.substr(0, variable.find('='));
    if (name.rfind("COUPLER_", 0) == 0 || name.rfind("MASTER_", 0) == 0 ||
        name == "OMP_NUM_THREADS") {
      names.push_back(name);
    }
  }
  Words words;
  for (const auto& name : names) {
    append(words, {"-x", name});
  }
  return words;
}

// mpirun starts rank 0 on the first host.
void set_meeting_place(const LaunchPlan& plan, Variables& added) {
  if (std::getenv("MASTER_ADDR") == nullptr) {
    added["MASTER_ADDR"] = plan.host_file.hosts.front().host;
  }
  if (std::getenv("MASTER_PORT") == nullptr) {
    added["MASTER_PORT"] = "29500";
  }
}

// What mpirun needs of its environment: as root, that this is meant; Open MPI 5 a HOME, which a
// service or a container may lack.
void set_for_mpirun(Variables& added) {
  if (::geteuid() == 0) {
    added["OMPI_ALLOW_RUN_AS_ROOT"] = added["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1";
  }
  if (std::getenv("HOME") == nullptr) {
    added["HOME"] = home_folder();
  }
}

}  // namespace

Mpirun find_open_mpi(const std::string& backend) {
  // Debian installs several MPIs in parallel, so try Open MPI's own name first.
  for (const char* name : {"mpirun.openmpi", "mpirun"}) {
    if (auto found = find_in_path(name); !found.empty()) {
      return {std::move(found), Mpirun::Kind::kOpenMpi};
    }
  }
  throw Error(ErrorCode::kPlugin,
              fmt::format("backend.use = \"{}\" needs mpirun, which is not installed", backend),
              {.subject = "mpirun",
               .hint = "run apt-get install openmpi-bin (or add its folder to PATH), or let "
                       "Coupler choose another backend: -o backend.use=auto"});
}

Mpirun find_mpirun(const LaunchPlan& plan) {
  std::vector<const char*> names = {"mpirun", "mpirun.openmpi", "mpirun.mpich", "mpiexec"};
  const config::BackendConfig& backend = plan.config.backend;
  if (plugin::try_plugin(backend.use, backend).can(DB_CAP_NEEDS_MPI_LAUNCH)) {
    names.insert(names.begin(), "mpirun.openmpi");
  }
  for (const char* name : names) {
    const auto path = find_in_path(name);
    if (path.empty()) {
      continue;
    }
    const auto version = capture_output({path, "--version"}, std::chrono::seconds(10)).value_or("");
    if (is_open_mpi(version)) {
      return {path, Mpirun::Kind::kOpenMpi};
    }
    if (says(version, "HYDRA") || says(version, "Intel(R) MPI")) {
      return {path, Mpirun::Kind::kHydra};
    }
    fail_usage(fmt::format("{} is neither Open MPI's mpirun nor MPICH's (--version prints: {})",
                           path, version.substr(0, version.find('\n'))),
               "--via", "put the folder of Open MPI's or MPICH's mpirun first in PATH");
  }
  fail_usage("--via mpirun: mpirun is not installed", "--via",
             "run apt-get install openmpi-bin (or mpich), or add its folder to PATH");
}

bool stays_on_this_machine(const LaunchPlan& plan) {
  const auto& hosts = plan.host_file.hosts;
  if (!hosts.empty()) {
    return std::all_of(hosts.begin(), hosts.end(),
                       [](const HostSlots& entry) { return is_this_machine(entry.host); });
  }
  // Without a hostfile, mpirun uses the nodes of its Slurm allocation.
  const char* nodes = std::getenv("SLURM_JOB_NUM_NODES");
  return nodes == nullptr || std::string(nodes) == "1";
}

Variables shim_rank_variables(const LaunchPlan& plan) {
  return stays_on_this_machine(plan) ? local_variables(plan) : common_variables(plan);
}

Variables shim_variables(const LaunchPlan& plan) {
  Variables variables = shim_rank_variables(plan);
  if (plan.prefix) {
    variables["COUPLER_SHIM_PREFIX"] = "1";
  }
  if (const char* path = std::getenv("LD_LIBRARY_PATH")) {
    variables[kShimLibraryPath] = path;  // before mpirun adds to it
  }
  if (!plan.log_dir.empty()) {
    variables["COUPLER_SHIM_LOG_DIR"] = plan.log_dir;
  }
  for (const auto& cpus : rank_cpus(plan)) {
    if (!cpus.empty() && stays_on_this_machine(plan)) {
      auto& lists = variables["COUPLER_SHIM_CPUS"];
      lists += (lists.empty() ? "" : ":") + format_cpu_list(cpus);
    }
  }
  // hwloc's x86 component would bind mpirun to each processor in turn at startup to query it,
  // though Linux already knows the answer. On a busy machine this takes seconds, in which not even
  // SIGKILL ends it.
  if (stays_on_this_machine(plan) && std::getenv(kTopologyParts) == nullptr) {
    variables[kTopologyParts] = "-x86";
    variables[kShimTopologyParts] = "1";
  }
  set_for_mpirun(variables);
  return variables;
}

std::vector<std::string> shim_command(const LaunchPlan& plan, const Mpirun& mpirun) {
  // Ranks may have several threads, so only --bind binds them: through their shims if all run on
  // this machine, else through mpirun.
  const bool here = stays_on_this_machine(plan);
  Words arguments = {mpirun.path, "-n", std::to_string(plan.processes), "--bind-to",
                     here ? "none" : bind_word(plan.bind)};
  if (plan.host_file.hosts.empty()) {
    arguments.emplace_back("--oversubscribe");  // more ranks than cores are fine
  } else {
    append(arguments, {"--host", host_list(plan.host_file)});
  }
  if (!here) {
    Variables passed = shim_variables(plan);
    passed[kShimStore];  // its value is known once the store exists
    append(arguments, passed_variables(passed));
  }
  arguments.push_back(own_program());
  append(arguments, {"rank-shim", "--", plan.path});
  append(arguments, plan.arguments);
  return arguments;
}

ForeignCommand mpirun_command(const LaunchPlan& plan, const Mpirun& mpirun) {
  ForeignCommand command{
      "mpirun", {mpirun.path, "-n", std::to_string(plan.processes)}, common_variables(plan)};
  Words& arguments = command.arguments;
  const bool open_mpi = mpirun.kind == Mpirun::Kind::kOpenMpi;
  if (!plan.host_file.hosts.empty()) {
    append(arguments, {open_mpi ? "--host" : "-hosts", host_list(plan.host_file)});
    set_meeting_place(plan, command.added);
  }
  append(arguments, {open_mpi ? "--bind-to" : "-bind-to", bind_word(plan.bind)});
  if (plan.prefix) {
    arguments.emplace_back(open_mpi ? "--tag-output" : "-prepend-rank");
  }
  if (!plan.log_dir.empty() && open_mpi) {
    append(arguments, {"--output-filename", plan.log_dir + ":nojobid"});
  } else if (!plan.log_dir.empty()) {
    append(arguments, {"-outfile-pattern", plan.log_dir + "/rank-%r.log", "-errfile-pattern",
                       plan.log_dir + "/rank-%r.err"});
  }
  if (open_mpi) {
    append(arguments, passed_variables(command.added));
    set_for_mpirun(command.added);
  }
  arguments.push_back(plan.path);
  arguments.insert(arguments.end(), plan.arguments.begin() + 1, plan.arguments.end());
  return command;
}

}  // namespace coupler::cli
