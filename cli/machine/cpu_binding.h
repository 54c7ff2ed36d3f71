// Assigns processors to the ranks of this machine, by the topology that the kernel shows under
// /sys/devices/system. Values and functions, callable from any thread.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

enum class Bind {
  kNone,  // wherever the launcher itself may run
  kCore,  // physical cores, divided evenly; neighbors share a NUMA node
  kNuma,  // all cores of one NUMA node; nodes are divided evenly
};

struct Cpu {
  int id = 0;
  int core = 0;  // the lowest id of those that share its physical core
  int node = 0;  // NUMA
};

std::vector<int> usable_cpus();  // of this process: taskset and containers limit them

// The processors in `usable`, sorted by node, core and id. If the kernel shows no topology, each
// processor is a core of its own on node 0. root: "/sys/devices/system" except in tests.
std::vector<Cpu> read_topology(const std::vector<int>& usable,
                               const std::string& root = "/sys/devices/system");

// The processors of each of `ranks` ranks; empty lists with kNone. Throws Error(kUsage) if there
// are more ranks than cores to bind to.
std::vector<std::vector<int>> bind_ranks(Bind bind, const std::vector<Cpu>& cpus, int ranks);

// "0-3,8", as the kernel writes lists. parse_cpu_list() returns {} if the string is malformed.
std::string format_cpu_list(const std::vector<int>& cpus);
std::vector<int> parse_cpu_list(const std::string& text);

}  // namespace coupler::cli
