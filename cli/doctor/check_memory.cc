#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>

#include "base/byte_size.h"
#include "cli/doctor/checks.h"
#include "cli/machine/resource_limits.h"
#include "cli/machine/small_files.h"

namespace coupler::cli {
namespace {

constexpr uint64_t kMebi = uint64_t{1} << 20;
// LibTorch and its buffers take a few hundred MiB of a process before any model is loaded.
constexpr uint64_t kOfProcess = 512 * kMebi;

}  // namespace

Findings check_memory(const Config& config) {
  const uint64_t total = memory_fact("MemTotal").value_or(0);
  const uint64_t available = memory_fact("MemAvailable").value_or(0);
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

Findings check_shared_memory(const Config&) {
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
