#include "cli/launch/launch_plan.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "cli/launch/mpirun.h"
#include "cli/launch/network_job.h"
#include "cli/launch/process_count.h"
#include "cli/process/capture_output.h"
#include "rendezvous/process_info.h"

namespace coupler::cli {
namespace {

void only_with(bool given, bool allowed, const char* word, const char* with) {
  if (given && !allowed) {
    fail_usage(fmt::format("{} works only with {}", word, with), word);
  }
}

// Rejects options that would be silently ignored in this mode.
void check_flags_fit(const LaunchOptions& options) {
  const Via via = options.via;
  const bool starts_here = via == Via::kLocal || via == Via::kTorchrun;
  only_with(!options.needs_log_dir.empty(), !options.log_dir.empty(), options.needs_log_dir.c_str(),
            "--log-dir FOLDER");
  only_with(!options.visible_devices.empty(), via != Via::kKubernetes && !options.print,
            "--gpu-ids",
            "ranks that are started now; set CUDA_VISIBLE_DEVICES in the script or "
            "the manifest");
  if (!options.hostfile.empty() && via != Via::kMpirun) {
    fail_usage("--hostfile works only with --via mpirun", "--hostfile",
               via == Via::kLocal ? "add --via mpirun" : "give --via mpirun, or omit --hostfile");
  }
  only_with(options.print, via == Via::kSlurm || via == Via::kKubernetes, "--print",
            "--via slurm or --via k8s (--dry-run shows what would be started)");
  only_with(!options.image.empty(), via == Via::kKubernetes, "--image", "--via k8s");
  only_with(!options.name.empty(), via == Via::kKubernetes || via == Via::kSlurm, "--name",
            "--via k8s and --via slurm");
  only_with(options.manifest != "jobset", via == Via::kKubernetes, "--manifest", "--via k8s");
  only_with(options.machine_rank.has_value(), starts_here, "--machine-rank",
            "local processes and --via torchrun");
  only_with(!options.main_address.empty(), starts_here, "--main-address",
            "local processes and --via torchrun");
  only_with(options.main_port.has_value(), starts_here, "--main-port",
            "local processes and --via torchrun");
  if (options.bind && *options.bind != Bind::kNone && via == Via::kTorchrun) {
    fail_usage("--bind: torchrun does not bind processes", "--bind", "omit --bind or --via");
  }
  if (options.machines.value_or(1) > 1 && via == Via::kMpirun) {
    fail_usage("--machines: mpirun takes its machines from a hostfile", "--machines",
               "list them in a file, one 'node1 slots=4' per line, and pass --hostfile FILE");
  }
}

// Several launchers of one job must agree on an address and a port.
void plan_machines(const LaunchOptions& options, LaunchPlan& plan) {
  plan.machines = options.machines.value_or(1);
  plan.machine_rank = options.machine_rank.value_or(0);
  plan.main_address = options.main_address;
  plan.main_port = options.main_port.value_or(0);
  if (plan.machine_rank >= plan.machines) {
    fail_usage(fmt::format("--machine-rank {} is not one of {} machines: ranks run from 0 to {}",
                           plan.machine_rank, plan.machines, plan.machines - 1),
               "--machine-rank",
               plan.machines == 1 ? "also give --machines" : "correct one of them");
  }
  if (plan.machines == 1 || (plan.via != Via::kLocal && plan.via != Via::kTorchrun)) {
    return;
  }
  if (!options.machine_rank || plan.main_address.empty() || plan.main_port == 0) {
    const char* missing = !options.machine_rank       ? "--machine-rank R"
                          : plan.main_address.empty() ? "--main-address HOST"
                                                      : "--main-port P (1 to 65535)";
    fail_usage(fmt::format("{} needs {}", as_written(options, "--machines"), missing), "--machines",
               "run on each machine: coupler launch --machines M --machine-rank R --main-address "
               "HOST --main-port PORT …, R from 0, HOST an address of machine 0");
  }
}

void check_sizes(const LaunchOptions& options, int processes) {
  if (options.ranks_of_sizes == 0 || options.ranks_of_sizes == processes) return;
  fail_usage(fmt::format("{} ask for {} ranks, but the job has {}", options.sizes,
                         options.ranks_of_sizes, processes),
             options.sizes,
             fmt::format("start {} processes, or correct the sizes", options.ranks_of_sizes));
}

// Refuses to run as one of several processes, each of which would start its own job.
void check_not_a_rank(const LaunchOptions& options) {
  if (options.machines || options.print || options.via == Via::kKubernetes) {
    return;
  }
  const rendezvous::ProcessInfo outer = rendezvous::detect_process();
  const bool is_task = outer.launcher == rendezvous::LauncherKind::kSlurm ||
                       outer.launcher == rendezvous::LauncherKind::kOpenMpi ||
                       outer.launcher == rendezvous::LauncherKind::kMpich;
  if (is_task && outer.world_size > 1) {
    const char* name = rendezvous::launcher_name(outer.launcher);
    fail_usage(fmt::format("`coupler launch` was itself started {} times by {}: each would start "
                           "its own job",
                           outer.world_size, name),
               name,
               "start it once (--via slurm or --via mpirun start the processes through the other "
               "launcher), or use --machines M with --machine-rank, or --machines 1 to start "
               "separate jobs");
  }
}

std::string absolute(const std::string& path) {
  return path.empty() ? path : std::filesystem::absolute(path).lexically_normal().string();
}

// Checks the network settings that concern this machine.
void check_network(const LaunchPlan& plan) {
  const auto& interface = plan.config.backend.interface;
  if (plan.via == Via::kSlurm || plan.via == Via::kKubernetes ||
      (plan.via == Via::kMpirun && !stays_on_this_machine(plan))) {
    return;
  }
  if (!interface.empty()) {
    const auto source = plan.config.sources.find("backend.interface");
    check_interface(
        interface, source == plan.config.sources.end() ? "backend.interface" : source->second.text);
  }
  if (plan.machines > 1 && plan.machine_rank == 0 && !plan.dry_run) {
    check_own_address_and_port(plan.main_address, plan.main_port);
  }
}

config::Config read_config(LaunchOptions& options) {
  const std::string file = options.request.file.value_or("");
  if (file.ends_with(".yaml") || file.ends_with(".yml") || file.ends_with(".json")) {
    fail_usage(fmt::format("{} is not TOML: other programs' files are not read at launch",
                           as_written(options, "--config")),
               file, fmt::format("convert it once: coupler config import {}", file));
  }
  config::Config config = config::load_config(options.request);
  auto& overrides = options.request.overrides;
  const size_t given = overrides.size();
  apply_settings(options, config);
  const auto words = backend_overrides(options.backend, config);
  overrides.insert(overrides.end(), words.begin(), words.end());
  if (overrides.size() > given) config = config::load_config(options.request);
  check_keys_are_read(options, config);
  return config;
}

}  // namespace

LaunchPlan make_launch_plan(LaunchOptions options) {
  LaunchPlan plan;
  apply_host_choice(options);
  check_flags_fit(options);
  plan.config = read_config(options);
  plan.overrides = options.request.overrides;
  static_cast<LaunchSettings&>(plan) = options;
  plan.log_dir = absolute(plan.log_dir);
  plan.outcome = absolute(plan.outcome);
  plan.bind = options.bind.value_or(Bind::kNone);
  plan.multi_gpu = options.backend.multi_gpu;
  plan.owns_ranks = options.machines.has_value();
  plan.config_given = options.request.file.has_value();
  plan_machines(options, plan);
  const ProcessCount count = count_processes(options, plan.config, plan.machines);
  plan.processes = count.processes;
  plan.host_file = count.host_file;
  check_sizes(options, plan.processes);
  check_not_a_rank(options);
  check_network(plan);
  plan.arguments = options.program;
  plan.program = plan.arguments.front();
  // A manifest's program is in its image, and a script's is where the job will run.
  const bool starts_here = plan.via != Via::kKubernetes && !plan.print;
  plan.path = starts_here ? find_program(plan.program) : plan.program;
  return plan;
}

}  // namespace coupler::cli
