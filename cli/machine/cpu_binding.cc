#include "cli/machine/cpu_binding.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <tuple>

#include "cli/machine/text_values.h"

namespace coupler::cli {
namespace {

std::vector<int> read_list(const std::string& path) {
  return parse_cpu_list(first_line_of(path).value_or(""));
}

// Node numbers by processor.
std::map<int, int> read_nodes(const std::string& root) {
  std::map<int, int> nodes;
  for (const int node : read_list(root + "/node/online")) {
    for (const int cpu : read_list(fmt::format("{}/node/node{}/cpulist", root, node))) {
      nodes[cpu] = node;
    }
  }
  return nodes;
}

// The processors in their order, in groups of neighbors with the same key.
template <typename Key>
std::vector<std::vector<int>> groups(const std::vector<Cpu>& cpus, Key key) {
  std::vector<std::vector<int>> result;
  for (size_t i = 0; i < cpus.size(); ++i) {
    if (i == 0 || key(cpus[i]) != key(cpus[i - 1])) {
      result.emplace_back();
    }
    result.back().push_back(cpus[i].id);
  }
  return result;
}

}  // namespace

std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int id = 0; id < CPU_SETSIZE; ++id) {
      if (CPU_ISSET(id, &set)) {
        cpus.push_back(id);
      }
    }
  }
  return cpus;
}

std::vector<Cpu> read_topology(const std::vector<int>& usable, const std::string& root) {
  const auto nodes = read_nodes(root);
  std::vector<Cpu> cpus;
  for (const int id : usable) {
    const auto siblings =
        read_list(fmt::format("{}/cpu/cpu{}/topology/thread_siblings_list", root, id));
    const auto node = nodes.find(id);
    cpus.push_back(
        {id, siblings.empty() ? id : siblings.front(), node == nodes.end() ? 0 : node->second});
  }
  std::sort(cpus.begin(), cpus.end(), [](const Cpu& a, const Cpu& b) {
    return std::tie(a.node, a.core, a.id) < std::tie(b.node, b.core, b.id);
  });
  return cpus;
}

std::vector<std::vector<int>> bind_ranks(Bind bind, const std::vector<Cpu>& cpus, int ranks) {
  const auto count = static_cast<size_t>(ranks);
  std::vector<std::vector<int>> result(count);
  if (bind == Bind::kNone) {
    return result;
  }
  const auto cores =
      groups(cpus, [](const Cpu& cpu) { return std::make_pair(cpu.node, cpu.core); });
  if (count > cores.size()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{} processes cannot be bound to {} cores", ranks, cores.size()),
                {.subject = "--bind",
                 .hint = fmt::format("start at most {} processes on this machine, or use --bind "
                                     "none",
                                     cores.size())});
  }
  if (bind == Bind::kCore) {
    for (size_t rank = 0; rank < count; ++rank) {
      for (size_t core = rank * cores.size() / count; core < (rank + 1) * cores.size() / count;
           ++core) {
        result[rank].insert(result[rank].end(), cores[core].begin(), cores[core].end());
      }
    }
    return result;
  }
  const auto nodes = groups(cpus, [](const Cpu& cpu) { return cpu.node; });
  for (size_t rank = 0; rank < count; ++rank) {
    result[rank] = nodes[rank * nodes.size() / count];
  }
  return result;
}

std::string format_cpu_list(const std::vector<int>& cpus) {
  std::vector<int> sorted = cpus;
  std::sort(sorted.begin(), sorted.end());
  std::string text;
  for (size_t i = 0; i < sorted.size();) {
    size_t last = i;
    while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) {
      ++last;
    }
    text += fmt::format("{}{}", text.empty() ? "" : ",", sorted[i]);
    text += last > i ? fmt::format("-{}", sorted[last]) : "";
    i = last + 1;
  }
  return text;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::istringstream numbers(part);
    int first = 0;
    if (!(numbers >> first)) {
      return {};
    }
    int last = first;
    if (numbers.peek() == '-' && !(numbers.ignore() >> last)) {
      return {};
    }
    for (int cpu = first; cpu <= last; ++cpu) {
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

}  // namespace coupler::cli
