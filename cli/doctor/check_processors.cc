#include <fmt/format.h>
#include <sys/timex.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>

#include "base/process.h"
#include "cli/doctor/checks.h"
#include "cli/machine/cpu_binding.h"
#include "cli/machine/resource_limits.h"
#include "cli/machine/text_values.h"
#include "cli/text/output.h"

namespace coupler::cli {
namespace {

Finding ranks(int64_t processes, int cores) {
  if (processes <= cores) {
    return {Level::kOk, fmt::format("{} core{} for {} process{}", cores, cores == 1 ? "" : "s",
                                    processes, processes == 1 ? "" : "es")};
  }
  return {Level::kWarning,
          fmt::format("launch.processes is {}, but only {} core{} can be used", processes, cores,
                      cores == 1 ? "" : "s"),
          "processes share cores, and wait for each other in every step",
          fmt::format("-o launch.processes={}", cores)};
}

// OMP_NUM_THREADS applies only if launch.threads_per_process is 0.
Findings threads(const config::Config& config, int cores) {
  const char* const variable = std::getenv("OMP_NUM_THREADS");
  if (variable == nullptr || *variable == '\0' || config.launch.threads_per_process > 0) return {};
  const std::string_view text = variable;
  int64_t count = 0;
  // A list has one number per nesting level.
  const auto result = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool whole = result.ptr == text.data() + text.size() || *result.ptr == ',';
  if (result.ec != std::errc() || !whole || count < 1) {
    return {
        {Level::kWarning,
         one_line(fmt::format("OMP_NUM_THREADS is '{}', which is not a number of threads", text)),
         "LibTorch starts a thread per core in every process", "unset OMP_NUM_THREADS"}};
  }
  const int64_t all = count * config.launch.processes;
  if (all > cores) {
    return {{Level::kWarning,
             fmt::format("OMP_NUM_THREADS is {}: {} processes have {} threads on {} cores", count,
                         config.launch.processes, all, cores),
             "threads share cores, which is often slower than one thread per process",
             "unset OMP_NUM_THREADS (coupler launch divides the cores)"}};
  }
  if (all * 2 <= cores) {
    return {{Level::kNote,
             fmt::format("OMP_NUM_THREADS is {}: {} of {} cores are used", count, all, cores),
             "the others are idle", "unset OMP_NUM_THREADS (coupler launch divides the cores)"}};
  }
  return {{Level::kOk, fmt::format("OMP_NUM_THREADS is {}", count)}};
}

// A container sees all processors, but is throttled once its share of CPU time is used up.
Findings quota(const config::Config& config, int cores) {
  const auto share = cgroup_limits().cpus;
  const auto bound = static_cast<int>(usable_cpus().size());
  if (!share || *share >= bound || std::getenv("OMP_NUM_THREADS") != nullptr ||
      config.launch.threads_per_process > 0) {
    return {};
  }
  const int64_t each = std::max<int64_t>(1, cores / config.launch.processes);
  return {
      {Level::kWarning,
       fmt::format("the control group allows {:.1f} processors' worth of time, but {} are visible",
                   *share, bound),
       "with a thread per visible processor, the time is used up early, and then all threads are "
       "throttled",
       fmt::format("-o launch.threads_per_process={}, or docker run --cpuset-cpus", each)}};
}

}  // namespace

Findings check_processors(const config::Config& config) {
  const int cores = usable_cores();
  Findings findings = {ranks(config.launch.processes, cores)};
  for (Finding& finding : threads(config, cores)) findings.push_back(std::move(finding));
  for (Finding& finding : quota(config, cores)) findings.push_back(std::move(finding));
  return findings;
}

// Kernel settings: the clock, huge pages and the CPU frequency.

namespace {

namespace fs = std::filesystem;

// Before Coupler existed: a clock that reads less was never set.
constexpr std::time_t kEarliest = 1704067200;  // 2024-01-01

// A container shares its host's clock and cannot set it.
std::string synchronize() {
  return (find_in_path("timedatectl").empty() ? install_command("chrony")
                                              : "timedatectl set-ntp true") +
         "; for a container, on its host";
}

}  // namespace

Findings check_clock(const std::string& root) {
  const std::string source =
      first_line_of(root + "/sys/devices/system/clocksource/clocksource0/current_clocksource")
          .value_or("");
  timex state = {};
  const int answer = adjtimex(&state);
  if (std::time(nullptr) < kEarliest) {
    return {{Level::kWarning, "the clock is set to a time before 2024",
             "checkpoints and logs get wrong dates, and downloads over TLS fail", synchronize()}};
  }
  if (source == "hpet" || source == "acpi_pm" || source == "jiffies") {
    return {
        {Level::kWarning, fmt::format("the kernel's clock source is {}", source),
         "reading the time takes a microsecond or more, which slows measurements and waits",
         "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource, as root; "
         "in a virtual machine, ask its operator"}};
  }
  const std::string name = source.empty() ? "unknown source" : source;
  if (answer == TIME_ERROR || (answer >= 0 && (state.status & STA_UNSYNC) != 0)) {
    return {{Level::kNote, fmt::format("the clock ({}) is not synchronized", name),
             "dates of files and logs differ between machines; Coupler itself is not affected",
             synchronize()}};
  }
  return {{Level::kOk, fmt::format("the clock ({}) is synchronized", name)}};
}

Findings check_huge_pages(const std::string& root) {
  const std::string file = "/sys/kernel/mm/transparent_hugepage/enabled";
  const auto modes = first_line_of(root + file);
  if (!modes) return {{Level::kOk, "the kernel has no transparent huge pages"}};
  if (modes->find("[never]") != std::string::npos) {
    return {{Level::kNote, "transparent huge pages are off",
             "large tensors span many small pages, which costs a few percent of speed",
             fmt::format("echo madvise > {}, as root; then set THP_MEM_ALLOC_ENABLE=1 for LibTorch",
                         file)}};
  }
  return {{Level::kOk, fmt::format("transparent huge pages: {}", *modes)}};
}

Findings check_frequency(const std::string& root) {
  std::map<std::string, int> slow;
  int governed = 0;
  for (const fs::path& processor : entries_of(root + "/sys/devices/system/cpu")) {
    const fs::path folder = processor / "cpufreq";
    const auto governor = first_line_of((folder / "scaling_governor").string());
    if (!governor) continue;
    ++governed;
    const std::string driver = first_line_of((folder / "scaling_driver").string()).value_or("");
    // Drivers that choose the frequency themselves are fast with the powersave governor, unless
    // their energy preference is "power".
    const bool chooses = driver == "intel_pstate" || driver == "amd-pstate-epp";
    const std::string wish =
        first_line_of((folder / "energy_performance_preference").string()).value_or("");
    if (*governor == "powersave" && (!chooses || wish == "power")) ++slow["powersave"];
  }
  if (governed == 0) {
    return {
        {Level::kOk, "the kernel does not control the CPU frequency, as in most virtual machines"}};
  }
  if (!slow.empty()) {
    return {
        {Level::kWarning,
         fmt::format("{} of {} processors use the powersave governor", slow["powersave"], governed),
         "they stay at their lowest frequency",
         fmt::format("cpupower frequency-set -g performance ({})",
                     install_command("linux-cpupower"))}};
  }
  return {{Level::kOk, fmt::format("{} processors can run at full frequency", governed)}};
}

}  // namespace coupler::cli
