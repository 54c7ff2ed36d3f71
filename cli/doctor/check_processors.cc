#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "cli/doctor/checks.h"
#include "cli/machine/cpu_binding.h"
#include "cli/machine/resource_limits.h"
#include "cli/text/table.h"

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
Findings threads(const Config& config, int cores) {
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
Findings quota(const Config& config, int cores) {
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

Findings check_processors(const Config& config) {
  const int cores = usable_cores();
  Findings findings = {ranks(config.launch.processes, cores)};
  for (Finding& finding : threads(config, cores)) findings.push_back(std::move(finding));
  for (Finding& finding : quota(config, cores)) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace coupler::cli
