#include "cli/launch/process_count.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "cli/machine/system_info.h"

namespace coupler::cli {
namespace {

constexpr int64_t kMaxJob = 1 << 20;  // processes of a job, on all machines

// How many devices --gpu-ids names; 0: it was not given.
int64_t named_devices(const LaunchOptions& options) {
  const std::string& ids = options.visible_devices;
  return ids.empty() ? 0 : std::count(ids.begin(), ids.end(), ',') + 1;
}

// Slurm's allocation sets the number of processes unless launch.processes is set explicitly.
std::optional<int> slurm_tasks(const LaunchOptions& options, const config::Config& config) {
  const char* tasks = std::getenv("SLURM_NTASKS");
  if (options.via != Via::kSlurm || options.print || tasks == nullptr ||
      config.sources.count("launch.processes") != 0) {
    return std::nullopt;
  }
  return parse_number(tasks, 1, kMaxProcesses, "SLURM_NTASKS", "number of tasks");
}

// Without a number of processes, one for each device, as Accelerate does.
int64_t count_devices(const LaunchOptions& options, int machines) {
  int64_t devices = named_devices(options);
  if (devices == 0) devices = static_cast<int64_t>(visible_gpus().size());
  if (devices == 0) {
    fail_usage("--multi_gpu does not say how many processes to start, and no NVIDIA GPU was found",
               "--multi_gpu",
               "give -n N, one process for each device, or name the devices with --gpu-ids");
  }
  return devices * machines;
}

int64_t wanted_processes(const LaunchOptions& options, const config::Config& config, int machines) {
  const int64_t of_machines =
      static_cast<int64_t>(options.per_machine.value_or(0)) * static_cast<int64_t>(machines);
  if (options.processes && options.per_machine && *options.processes != of_machines) {
    fail_usage(
        fmt::format("{} and {} contradict each other on {} machine{}: the first is the total "
                    "number of processes",
                    as_written(options, "-n"), as_written(options, "--per-machine"), machines,
                    machines == 1 ? "" : "s"),
        "-n", "give one of them");
  }
  if (options.processes) return *options.processes;
  if (options.per_machine) return of_machines;
  if (const auto tasks = slurm_tasks(options, config)) return *tasks;
  if (options.backend.multi_gpu && config.sources.count("launch.processes") == 0)
    return count_devices(options, machines);
  return config.launch.processes;
}

// What asked for this number: "--machines 4 and --per-machine 2".
std::string who_asked(const LaunchOptions& options) {
  const char* count = options.per_machine && !options.processes ? "--per-machine" : "-n";
  const std::string first = as_written(options, count);
  return options.machines ? fmt::format("{} and {}", as_written(options, "--machines"), first)
                          : first;
}

int checked_count(const LaunchOptions& options, int64_t processes, int machines) {
  if (processes > kMaxJob) {
    fail_usage(fmt::format("{} ask for {} processes, more than a job can have ({})",
                           who_asked(options), processes, kMaxJob),
               "--machines", "ask for fewer");
  }
  if (processes % machines != 0) {
    fail_usage(
        fmt::format("{} processes cannot be divided evenly among {} machines", processes, machines),
        "-n", fmt::format("give a multiple of {}, or use --per-machine N", machines));
  }
  if (processes / machines > kMaxProcesses) {
    fail_usage(fmt::format("{} processes exceed the limit of one launcher ({})",
                           processes / machines, kMaxProcesses),
               "-n");
  }
  return static_cast<int>(processes);
}

// Open MPI and MPICH pass CUDA_VISIBLE_DEVICES on to no other machine, where the devices may also
// have other numbers.
void check_devices_are_here(const LaunchOptions& options, const HostFile& file) {
  if (options.visible_devices.empty()) return;
  for (const HostSlots& entry : file.hosts) {
    if (is_this_machine(entry.host)) continue;
    fail_usage(fmt::format("{} names devices of this machine, but {} also has the machine {}",
                           as_written(options, "--gpu-ids"), file.path, entry.host),
               "--gpu-ids",
               "ranks use the first devices of each machine, as many as its slots=N: set "
               "CUDA_VISIBLE_DEVICES on a machine whose ranks are to use others");
  }
}

// A process in each slot, unless a number was given.
bool fills_slots(const LaunchOptions& options, const config::Config& config) {
  if (options.processes) return false;
  return options.hosts.given() || config.sources.count("launch.processes") == 0;
}

ProcessCount count_in_slots(const LaunchOptions& options, const config::Config& config) {
  if (options.per_machine) {
    fail_usage(fmt::format("{} does not apply to the machines of {}",
                           as_written(options, "--per-machine"), options.hostfile),
               "--per-machine", "use --num_gpus N for N processes on each of them, or -n");
  }
  ProcessCount count;
  count.host_file = chosen_hosts(read_host_file(options.hostfile), options.hosts);
  check_devices_are_here(options, count.host_file);
  const int slots = count.host_file.slots();
  const int64_t wanted =
      fills_slots(options, config) ? slots : wanted_processes(options, config, 1);
  if (wanted > slots) {
    fail_usage(
        fmt::format("{} processes exceed the {} slots of {}", wanted, slots, count.host_file.path),
        "-n", fmt::format("start at most {}, or raise slots=N in the hostfile", slots));
  }
  count.processes = checked_count(options, wanted, 1);
  return count;
}

// With a hostfile: --machines M, which Accelerate's and torchrun's options also set, are the first
// M machines of it.
void choose_machines(LaunchOptions& options) {
  if (!options.machines) return;
  if (const auto known = options.setters.find("--machines"); known != options.setters.end()) {
    note_setter(options, "--num_nodes", known->second);
    options.hosts.machines_option = known->second.name;
  }
  options.hosts.machines = options.machines;
  options.machines.reset();
}

}  // namespace

void apply_host_choice(LaunchOptions& options) {
  if (!options.hostfile.empty()) {
    choose_machines(options);
    return;
  }
  const HostChoice& hosts = options.hosts;
  if (!hosts.given()) return;
  if (!hosts.exclude.empty())
    fail_usage(fmt::format("{} needs a hostfile", as_written(options, "--exclude")), "--exclude",
               "add --via mpirun --hostfile FILE, or name this machine's devices with --gpu-ids");
  if (!hosts.include.empty()) {
    const std::string written = as_written(options, "--include");
    const std::string devices = devices_here(hosts.include);
    const auto count = std::count(devices.begin(), devices.end(), ',') + 1;
    const auto set = [&](const std::string& ours, const std::string& value) {
      note_setter(options, ours, {"--include", value, written});
    };
    set("--gpu-ids", devices);
    set("--per-machine", std::to_string(count));
    if (hosts.slots) set("--num_gpus", "");
    options.visible_devices = devices;
    options.per_machine = static_cast<int>(count);
  }
  if (hosts.slots) {
    apply_words(options, "--per-machine {}", std::to_string(*hosts.slots), "--num_gpus");
  }
  if (hosts.machines) {
    apply_words(options, "--machines {}", std::to_string(*hosts.machines), "--num_nodes");
  }
}

ProcessCount count_processes(const LaunchOptions& options, const config::Config& config,
                             int machines) {
  if (!options.hostfile.empty()) return count_in_slots(options, config);
  return {checked_count(options, wanted_processes(options, config, machines), machines), {}};
}

}  // namespace coupler::cli
