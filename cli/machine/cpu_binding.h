// Which processors each rank of this machine runs on. Values and functions over what the kernel
// shows under /sys/devices/system; no thread rule.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

enum class Bind {
  kNone,  // wherever the launcher itself may run
  kCore,  // physical cores, divided evenly: neighbours share a NUMA node
  kNuma,  // all cores of one NUMA node; nodes are divided evenly
};

struct Cpu {
  int id = 0;
  int core = 0;  // the lowest id of those that share its physical core
  int node = 0;  // NUMA
};

std::vector<int> usable_cpus();  // of this process: taskset and containers limit them

// Those of `usable`, sorted by node, core and id. Where the kernel tells nothing a processor is a
// core of its own, on node 0. root: "/sys/devices/system" but in tests.
std::vector<Cpu> read_topology(const std::vector<int>& usable,
                               const std::string& root = "/sys/devices/system");

// The processors of each of `ranks` ranks; empty lists with kNone. Throws Error(kUsage) where there
// are more ranks than cores to bind to.
std::vector<std::vector<int>> bind_ranks(Bind bind, const std::vector<Cpu>& cpus, int ranks);

// "0-3,8", as the kernel writes lists; and back: nothing where the text is none.
std::string format_cpu_list(const std::vector<int>& cpus);
std::vector<int> parse_cpu_list(const std::string& text);

}  // namespace coupler::cli
