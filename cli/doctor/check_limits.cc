#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>

#include "base/units.h"
#include "cli/doctor/checks.h"
#include "cli/machine/resource_limits.h"
#include "cli/machine/text_values.h"

namespace coupler::cli {
namespace {

rlimit limit_of(__rlimit_resource_t resource) {
  rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
  getrlimit(resource, &limit);  // cannot fail for an existing resource
  return limit;
}

// ulimit can raise a limit up to the hard limit; only root can go beyond.
std::string raise(char letter, const char* item, rlim_t hard, uint64_t wanted) {
  if (hard >= wanted) return fmt::format("ulimit -{} {}", letter, wanted);
  return fmt::format(
      "as root: echo '* - {} {}' >> /etc/security/limits.conf, and log in again; in a container: "
      "docker run --ulimit {}={}",
      item, wanted, item, wanted);
}

std::string raise_to_unlimited(char letter, const char* item, rlim_t hard) {
  if (hard == RLIM_INFINITY) return fmt::format("ulimit -{} unlimited", letter);
  return fmt::format(
      "as root: echo '* - {} unlimited' >> /etc/security/limits.conf, and log in again", item);
}

}  // namespace

Findings check_limits(const config::Config& config) {
  Findings findings;
  const auto processes = static_cast<uint64_t>(config.launch.processes);
  const rlimit files = limit_of(RLIMIT_NOFILE);
  // Each rank connects to every other; the launcher holds a connection and the output of each.
  const uint64_t files_wanted = std::max<uint64_t>(1024, 256 + 8 * processes);
  if (files.rlim_cur < files_wanted) {
    findings.push_back(
        {Level::kWarning, fmt::format("{} open files", files.rlim_cur),
         fmt::format("{} process{} may need {}, and data loaders more", processes,
                     processes == 1 ? "" : "es", files_wanted),
         raise('n', "nofile", files.rlim_max, std::max<uint64_t>(4096, files_wanted))});
  }
  const rlimit tasks = limit_of(RLIMIT_NPROC);
  const uint64_t tasks_wanted = 512 + 64 * processes;
  if (tasks.rlim_cur < tasks_wanted) {
    findings.push_back({Level::kWarning,
                        fmt::format("{} processes and threads for this user", tasks.rlim_cur),
                        "LibTorch and the backends start threads in every process",
                        raise('u', "nproc", tasks.rlim_max, 4 * tasks_wanted)});
  }
  const rlimit address_space = limit_of(RLIMIT_AS);
  if (address_space.rlim_cur != RLIM_INFINITY) {
    findings.push_back(
        {Level::kWarning,
         fmt::format("{} of address space", format_byte_size(address_space.rlim_cur)),
         "CUDA and memory-mapped checkpoints reserve far more addresses than they use",
         raise_to_unlimited('v', "as", address_space.rlim_max)});
  }
  const rlimit locked = limit_of(RLIMIT_MEMLOCK);
  if (!entries_of("/sys/class/infiniband").empty() && locked.rlim_cur < (uint64_t{64} << 20)) {
    findings.push_back({Level::kWarning,
                        fmt::format("{} of locked memory", format_byte_size(locked.rlim_cur)),
                        "InfiniBand needs locked memory for messages",
                        raise_to_unlimited('l', "memlock", locked.rlim_max)});
  }
  if (const auto most = cgroup_limits().processes; most && *most < tasks_wanted) {
    findings.push_back({Level::kWarning,
                        fmt::format("the control group allows {} processes and threads", *most),
                        "LibTorch and the backends start threads in every process",
                        fmt::format("docker run --pids-limit {}", 4 * tasks_wanted)});
  }
  if (findings.empty()) findings.push_back({Level::kOk, process_limits()});
  if (limit_of(RLIMIT_CORE).rlim_cur == 0) {
    findings.push_back({Level::kNote, "no core files", "a crashed process leaves nothing to debug",
                        raise_to_unlimited('c', "core", limit_of(RLIMIT_CORE).rlim_max)});
  }
  return findings;
}

namespace {

constexpr uint64_t kMebi = uint64_t{1} << 20;
// LibTorch and its buffers take a few hundred MiB of a process before any model is loaded.
constexpr uint64_t kOfProcess = 512 * kMebi;

}  // namespace

Findings check_memory(const config::Config& config) {
  const uint64_t total = meminfo("MemTotal").value_or(0);
  const uint64_t available = meminfo("MemAvailable").value_or(0);
  const auto limit = cgroup_limits().memory;
  const auto processes = static_cast<uint64_t>(config.launch.processes);
  const uint64_t room = std::min(available, limit.value_or(available));
  Findings findings;
  const std::string facts = fmt::format(
      "{} available of {}{}", format_byte_size(available), format_byte_size(total),
      limit && *limit < total
          ? fmt::format(", the control group is limited to {}", format_byte_size(*limit))
          : "");
  if (room < processes * kOfProcess) {
    findings.push_back(
        {Level::kWarning, facts,
         fmt::format("{} process{} with LibTorch take {} before any model is loaded; the "
                     "kernel kills what does not fit",
                     processes, processes == 1 ? "" : "es",
                     format_byte_size(processes * kOfProcess)),
         limit && *limit < available
             ? "raise docker run --memory=… or #SBATCH --mem=…, or start fewer processes"
             : "end other programs (ps aux --sort=-rss | head), or start fewer "
               "processes"});
  } else {
    findings.push_back({Level::kOk, facts});
  }
  if (!config.memory.limit.empty()) {
    const uint64_t each = parse_byte_size(config.memory.limit, "memory.limit");
    const uint64_t most = std::min(total, limit.value_or(total));
    if (each > most / processes) {
      findings.push_back(
          {Level::kWarning,
           fmt::format("memory.limit is {} for each of {} processes, but the total is {}",
                       config.memory.limit, processes, format_byte_size(most)),
           "the kernel kills processes before they reach the limit",
           fmt::format("-o memory.limit={}MiB", most / processes / kMebi)});
    }
  }
  return findings;
}

Findings check_shared_memory(const config::Config&) {
  constexpr uint64_t kEnough = 256 * kMebi, kLittle = 64 * kMebi;
  constexpr const char* kWhy = "Open MPI's processes exchange data through it";
  constexpr const char* kMount =
      "mount -o remount,size=1g /dev/shm; in a container: docker run "
      "--shm-size=1g";
  struct statvfs facts = {};
  if (statvfs("/dev/shm", &facts) != 0) {
    return {{Level::kWarning, "/dev/shm does not exist", kWhy,
             "mkdir -m 1777 /dev/shm && mount -t tmpfs -o size=1g tmpfs /dev/shm"}};
  }
  const uint64_t size = facts.f_blocks * facts.f_frsize, left = facts.f_bavail * facts.f_frsize;
  const std::string what =
      fmt::format("/dev/shm has {}, {} of it free", format_byte_size(size), format_byte_size(left));
  if (access("/dev/shm", W_OK) != 0) {
    return {{Level::kWarning, "/dev/shm cannot be written to", kWhy, "chmod 1777 /dev/shm"}};
  }
  if (size < kEnough) return {{Level::kWarning, what, kWhy, kMount}};
  if (left < kLittle) {
    return {{Level::kWarning, what, kWhy,
             "find what fills it: ls -lS /dev/shm; or enlarge it: " + std::string(kMount)}};
  }
  return {{Level::kOk, what}};
}

}  // namespace coupler::cli
