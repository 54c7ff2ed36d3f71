// What this process may use of its machine: the limits of its control group (a container's or a
// batch job's) and its own. Plain functions, callable from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace coupler::cli {

// The tightest limits of the group and those above it; nullopt: unlimited, or no group is shown.
struct CgroupLimits {
  std::optional<uint64_t> memory;  // bytes
  std::optional<double> cpus;      // processors' worth of time
  std::optional<uint64_t> processes;
  int version = 0;  // of the cgroup interface, 1 or 2; 0: none
};
// root: the prefix of /proc and /sys, "" except in tests.
CgroupLimits cgroup_limits(const std::string& root = "");
std::string describe(const CgroupLimits& limits);

// "open files 1024 of 1048576, locked memory 8 MiB, …": soft limits, and hard ones that differ.
std::string process_limits();

// The number of processors this process may run on, at most what its control group's share of CPU
// time is worth, rounded up.
int usable_cores();

}  // namespace coupler::cli
