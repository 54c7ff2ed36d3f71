#include "cli/machine/resource_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/units.h"
#include "cli/machine/cpu_binding.h"
#include "cli/machine/text_values.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

template <typename T>
void tighten(std::optional<T>& limit, std::optional<T> other) {
  if (other && (!limit || *other < *limit)) limit = other;
}

// Version 1 of the interface expresses "none" as a number at least this large.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

std::optional<uint64_t> limit_in(const fs::path& file) {
  const auto number = number_in(file.string());
  return number && *number < kNoLimit ? number : std::nullopt;
}

// "200000 100000": quota and period in microseconds; "max 100000": unlimited.
std::optional<double> quota_in(const fs::path& file) {
  const std::string line = first_line_of(file.string()).value_or("max");
  double quota = 0, period = 0;
  const char* const end = line.data() + line.size();
  const auto first = std::from_chars(line.data(), end, quota);
  if (first.ec != std::errc() || first.ptr == end) return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, period);
  if (second.ec != std::errc() || period <= 0 || quota <= 0) return std::nullopt;
  return quota / period;
}

std::optional<double> old_quota_in(const fs::path& folder) {
  const auto quota = number_in((folder / "cpu.cfs_quota_us").string());  // -1: none
  const auto period = number_in((folder / "cpu.cfs_period_us").string());
  if (!quota || !period || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

// Calls visit with the group's folder and all those above it, up to and including top. A container
// may be shown its group's path on the host, although top is that group.
template <typename Visit>
void climb(const fs::path& top, const fs::path& group, const Visit& visit) {
  fs::path folder = group.relative_path();
  for (;; folder = folder.parent_path()) {
    visit(top / folder);
    if (folder.empty()) return;
  }
}

std::string limit_text(rlim_t value, bool bytes) {
  if (value == RLIM_INFINITY) return "unlimited";
  return bytes ? format_byte_size(value) : std::to_string(value);
}

}  // namespace

CgroupLimits cgroup_limits(const std::string& root) {
  CgroupLimits limits;
  const fs::path top = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/user", "0::/user"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    std::error_code unreadable;
    if (controllers.empty() && fs::exists(top / "cgroup.controllers", unreadable)) {
      limits.version = 2;
      climb(top, group, [&](const fs::path& folder) {
        tighten(limits.memory, limit_in(folder / "memory.max"));
        tighten(limits.cpus, quota_in(folder / "cpu.max"));
        tighten(limits.processes, limit_in(folder / "pids.max"));
      });
      continue;
    }
    if (limits.version == 0 && !controllers.empty()) limits.version = 1;
    const std::string each = "," + controllers + ",";
    climb(top / controllers, group, [&](const fs::path& folder) {
      if (each.find(",memory,") != std::string::npos) {
        tighten(limits.memory, limit_in(folder / "memory.limit_in_bytes"));
      }
      if (each.find(",cpu,") != std::string::npos) tighten(limits.cpus, old_quota_in(folder));
      if (each.find(",pids,") != std::string::npos) {
        tighten(limits.processes, limit_in(folder / "pids.max"));
      }
    });
  }
  return limits;
}

std::string describe(const CgroupLimits& limits) {
  if (limits.version == 0) return "the kernel shows none";
  std::string text = fmt::format("v{}", limits.version);
  if (limits.memory) text += ", memory " + format_byte_size(*limits.memory);
  if (limits.cpus) text += fmt::format(", {:.1f} processors' time", *limits.cpus);
  if (limits.processes) text += fmt::format(", {} processes", *limits.processes);
  return limits.memory || limits.cpus || limits.processes ? text : text + ", no limits";
}

std::string process_limits() {
  struct Row {
    __rlimit_resource_t resource;
    const char* name;
    bool bytes;
  };
  constexpr std::array<Row, 4> kRows = {{{RLIMIT_NOFILE, "open files", false},
                                         {RLIMIT_MEMLOCK, "locked memory", true},
                                         {RLIMIT_NPROC, "processes", false},
                                         {RLIMIT_CORE, "core files", true}}};
  std::string text;
  for (const Row& row : kRows) {
    rlimit limit = {};
    if (getrlimit(row.resource, &limit) != 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", row.name,
                        limit_text(limit.rlim_cur, row.bytes));
    if (limit.rlim_cur != limit.rlim_max) {
      text += " of " + limit_text(limit.rlim_max, row.bytes);
    }
  }
  return text;
}

int usable_cores() {
  const int bound = std::max<int>(1, static_cast<int>(usable_cpus().size()));
  const auto share = cgroup_limits().cpus;
  if (!share) return bound;
  return std::clamp(static_cast<int>(std::ceil(*share)), 1, bound);
}

}  // namespace coupler::cli
