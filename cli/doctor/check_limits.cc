#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/byte_size.h"
#include "cli/doctor/checks.h"
#include "cli/machine/resource_limits.h"

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

bool has_infiniband() {
  std::error_code failed;
  const std::filesystem::directory_iterator entry("/sys/class/infiniband", failed), end;
  return !failed && entry != end;
}

}  // namespace

Findings check_limits(const Config& config) {
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
  if (has_infiniband() && locked.rlim_cur < (uint64_t{64} << 20)) {
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

}  // namespace coupler::cli
