// What this process may use of its machine: limits of its control group (a container's, a batch
// job's) and of itself. Plain functions; no thread rule.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace coupler::cli {

// The tightest of the group and those above it; none: no limit, or the kernel shows no groups.
struct CgroupLimits {
  std::optional<uint64_t> memory;  // bytes
  std::optional<double> cpus;      // processors' worth of time
  std::optional<uint64_t> processes;
  int version = 0;  // of the interface, 1 or 2; 0: there is none
};
// root: "" but in tests; stands before /proc and /sys.
CgroupLimits cgroup_limits(const std::string& root = "");
std::string describe(const CgroupLimits& limits);

// "open files 1024 of 1048576, locked memory 8 MiB, …": what a process may have, and may raise that
// to.
std::string process_limits();

// Processors that this process may run on, and those that its control group's share of time is
// worth.
int usable_cores();

}  // namespace coupler::cli
