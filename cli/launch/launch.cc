// coupler launch: turns the command line into a plan and starts it.
#include <coupler/error.h>
#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cli/launch/job_end.h"
#include "cli/launch/launch_modes.h"
#include "cli/launch/launch_plan.h"
#include "cli/launch/leftovers.h"
#include "cli/launch/mpirun.h"
#include "cli/launch/network_job.h"
#include "cli/launch/rank_environment.h"
#include "cli/process/output_relay.h"
#include "plugin/resolve.h"

namespace coupler::cli {

// What --dry-run and --print-env print about a launch. Plain data and functions; no threading rule.

namespace {

struct LaunchDescription {
  std::string started_by;            // "srun" and the like; "": `coupler launch` itself
  std::vector<std::string> command;  // what would be executed, argv[0] first
  Variables added;                   // for all ranks, if another launcher starts them
  bool ours = false;                 // whether we or our shims bind the ranks and write their logs
};

std::string ranks_of(const LaunchPlan& plan) {
  if (plan.machines == 1) {
    return fmt::format("{}", plan.processes);
  }
  return fmt::format("{}, {} on each of {} machines", plan.processes, plan.per_machine(),
                     plan.machines);
}

std::string rank_lines(const LaunchPlan& plan) {
  std::string text;
  const auto cpus = rank_cpus(plan);
  for (int local = 0; local < plan.per_machine(); ++local) {
    const int rank = plan.first_rank() + local;
    const auto& bound = cpus[static_cast<size_t>(local)];
    std::string line = bound.empty() ? "" : fmt::format(" processors {}", format_cpu_list(bound));
    if (!plan.log_dir.empty()) {
      line += fmt::format("{} log {}", line.empty() ? "" : ",", log_path(plan.log_dir, rank));
    }
    text += line.empty() ? "" : fmt::format("rank {}:{}\n", rank, line);
  }
  return text;
}

std::string lines(const Variables& variables) {
  std::string text;
  for (const auto& [name, value] : variables) {
    text += fmt::format("{}={}\n", name, shell_word(value));
  }
  return text;
}

std::string describe_launch(const LaunchPlan& plan, const LaunchDescription& launch) {
  std::string text =
      fmt::format("processes: {}\nbackend: {}\nstarted by: {}\n", ranks_of(plan),
                  plan.processes == 1 ? "none (one process needs none)" : plan.config.backend.use,
                  launch.started_by.empty() ? "coupler launch" : launch.started_by);
  if (plan.machines > 1 && !plan.main_address.empty()) {
    text += fmt::format("this machine: {}, rendezvous at {}:{}\n", plan.machine_rank,
                        plan.main_address, plan.main_port);
  }
  if (launch.ours) {
    text += rank_lines(plan);
  }
  return text + fmt::format("command: {}\n", shell_line(launch.command));
}

// The variables that a launch adds, as NAME=value quoted for a shell; per rank if we start the
// ranks ourselves.
std::string describe_environment(const LaunchPlan& plan, const LaunchDescription& launch) {
  if (!launch.started_by.empty()) {
    return fmt::format("# every rank; {} adds its own variables\n{}", launch.started_by,
                       lines(launch.added));
  }
  std::string text;
  for (int local = 0; local < plan.per_machine(); ++local) {
    text += fmt::format("# rank {}{}\n", plan.first_rank() + local,
                        plan.processes > 1 && plan.machines == 1
                            ? ", plus COUPLER_JOB_FILE, which exists only while the launcher runs"
                            : "");
    text += lines(rank_variables(plan, local, ""));
  }
  return text;
}

// As far as the launcher places the ranks. mpirun does that itself, and whoever starts processes
// with it has chosen an MPI library, which knows its machines. So does srun, unless --machines says
// how many ranks each machine has.
plugin::Spread spread_of(const LaunchPlan& plan) {
  if (plan.via == Via::kMpirun) return plugin::Spread::kUnknown;
  if (plan.machines > 1) {
    return plan.per_machine() > 1 ? plugin::Spread::kShared : plugin::Spread::kUnknown;
  }
  return plan.via == Via::kSlurm ? plugin::Spread::kUnknown : plugin::Spread::kOneMachine;
}

// Chooses the backend once, here, so that all ranks agree and because the choice of mpirun depends
// on it. Returns whether Open MPI's mpirun must start the processes.
bool plan_backend(LaunchPlan& plan, plugin::MpiLaunch mpi) {
  if (plan.processes == 1 && !plan.multi_gpu) {
    return false;  // one process needs no backend
  }
  plugin::TransportChoice transport;
  try {
    transport = plugin::choose_transport(plan.config.backend, mpi,
                                         plan.config.training.device == "cpu", spread_of(plan));
  } catch (const Error& error) {
    if (!plan.multi_gpu || error.code() != ErrorCode::kPlugin) {
      throw;
    }
    throw Error(ErrorCode::kPlugin,
                "--multi_gpu needs CUDA devices, but no backend for them can be used here",
                {.subject = "--multi_gpu",
                 .hint = "omit it, or use --cpu to train on CPUs; `coupler plugins` shows what is "
                         "missing"});
  }
  plan.config.backend.use = transport.use;
  plan.overrides.insert(plan.overrides.end(), transport.overrides.begin(),
                        transport.overrides.end());
  return transport.needs_mpi_launch && plan.processes > 1;
}

void refuse_mpi(const LaunchPlan& plan, const std::string& how) {
  throw Error(
      ErrorCode::kConfig,
      fmt::format("backend.use = \"{}\" runs over MPI: only Open MPI's mpirun can start its "
                  "processes, not {}",
                  plan.config.backend.use, how),
      {.subject = "backend.use",
       .hint =
           "use --via mpirun, with --hostfile for several machines, or let Coupler choose another "
           "backend: -o backend.use=auto"});
}

// With --dry-run or --print-env, prints what would be done; returns whether that was all.
bool only_described(const LaunchPlan& plan, const LaunchDescription& launch) {
  if (plan.dry_run) {
    write_all(1, describe_launch(plan, launch));
  }
  if (plan.print_env) {
    write_all(1, describe_environment(plan, launch));
  }
  return plan.dry_run || plan.print_env;
}

void remove_leftovers() {
  for (const Leftover& one : leftovers_of_launchers(Then::kRemove)) {
    if (one.failure.empty()) {
      log(LogLevel::kInfo, "launch", fmt::format("removed {}: {}", one.path, one.what));
    } else {
      log(LogLevel::kWarning, "launch",
          fmt::format("cannot remove {} ({}, which was killed): {}", one.path, one.what,
                      one.failure));
    }
  }
}

int start(LaunchPlan& plan, const std::function<JobExit()>& run) {
  if (!plan.log_dir.empty()) {
    make_log_folder(plan.log_dir);
  }
  remove_leftovers();
  return run_with_restarts(plan, run);
}

// make: returns the command of one start; its environment contains the restart count.
int start_foreign(LaunchPlan& plan, const std::function<ForeignCommand(const LaunchPlan&)>& make) {
  if (!plan.outcome.empty()) {
    throw Error(
        ErrorCode::kUsage, "--outcome works only for ranks that `coupler launch` itself starts",
        {.subject = "--outcome", .hint = "omit it, and use the other launcher's job status"});
  }
  const ForeignCommand command = make(plan);
  if (only_described(plan, {command.launcher, command.arguments, command.added, false})) {
    return 0;
  }
  return start(plan, [&] { return run_foreign(make(plan)); });
}

int start_with_shims(LaunchPlan& plan, const Mpirun& mpirun) {
  if (only_described(plan,
                     {"mpirun", shim_command(plan, mpirun), shim_rank_variables(plan), true})) {
    return 0;
  }
  return start(plan, [&] { return launch_mpi(plan, mpirun); });
}

int start_via_mpirun(LaunchPlan& plan) {
  const Mpirun mpirun = find_mpirun(plan);
  const bool open_mpi = mpirun.kind == Mpirun::Kind::kOpenMpi;
  if (plan_backend(plan, open_mpi ? plugin::MpiLaunch::kPossible : plugin::MpiLaunch::kTooLate) &&
      !open_mpi) {
    refuse_mpi(plan, mpirun.path);
  }
  return open_mpi && plan.processes > 1 &&
                 (stays_on_this_machine(plan) || can_have_network_store(plan))
             ? start_with_shims(plan, mpirun)
             : start_foreign(plan,
                             [&](const LaunchPlan& it) { return mpirun_command(it, mpirun); });
}

int start_local(LaunchPlan& plan) {
  const bool needs_mpirun = plan_backend(
      plan, plan.machines == 1 ? plugin::MpiLaunch::kPossible : plugin::MpiLaunch::kTooLate);
  if (needs_mpirun && plan.machines > 1) {
    refuse_mpi(plan, "a `coupler launch` on each machine");
  }
  if (needs_mpirun) {
    return start_with_shims(plan, find_open_mpi(plan.config.backend.use));
  }
  if (only_described(plan, {"", plan.arguments, {}, true})) {
    return 0;
  }
  return start(plan, [&] { return launch_local(plan); });
}

int run_launch(const Arguments& arguments) {
  LaunchPlan plan = make_launch_plan(read_launch_options(arguments));
  for (const std::string& remark : plan.remarks) log(LogLevel::kWarning, "launch", remark);
  switch (plan.via) {
    case Via::kKubernetes:
      write_all(1, kubernetes_manifest(plan));
      return 0;
    case Via::kSlurm:
      if (plan.print) {
        write_all(1, sbatch_script(plan));
        return 0;
      }
      if (plan_backend(plan, plugin::MpiLaunch::kTooLate)) {
        refuse_mpi(plan, "srun");
      }
      return start_foreign(plan, srun_command);
    case Via::kTorchrun:
      if (plan_backend(plan, plugin::MpiLaunch::kTooLate)) {
        refuse_mpi(plan, "torchrun");
      }
      // torchrun restarts its workers itself.
      return start_foreign(plan,
                           [restarts = std::exchange(plan.max_restarts, 0)](const LaunchPlan& it) {
                             return torchrun_command(it, restarts);
                           });
    case Via::kMpirun:
      return start_via_mpirun(plan);
    case Via::kLocal:
      break;
  }
  return start_local(plan);
}

}  // namespace

Command launch_command() {
  return {
      .name = "launch",
      .summary = "start a program as a group of processes that train together",
      .forms = {"PROGRAM [ARGUMENT]..."},
      .options = launch_options(),
      .description = {"Starts PROGRAM as several processes that train together, on this "
                      "machine or through another launcher. Options come before PROGRAM; "
                      "everything after it is passed to the program."},
      .notes = {"The options of accelerate launch, torchrun and deepspeed work here, too, or say "
                "what to use instead: --help-all lists them. In long options _ and - are the "
                "same.",
                "Exit code: that of the first process that failed (128 + signal if killed), 2 "
                "for a usage or configuration error, 3 for an unusable backend."},
      .examples = {"coupler launch -n 2 -o training.mixed_precision=bf16 ./train"},
      .run = run_launch};
}

}  // namespace coupler::cli
