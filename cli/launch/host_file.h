// HostFile: the machines of a job and how many processes each takes, read from a file. Plain data
// and functions; no threading rule.
//
// One machine per line: "node1 slots=4" (Open MPI, DeepSpeed) or "node1:4" (MPICH); the default is
// one process. "#" starts a comment. The slots of a machine on several lines add up.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

struct HostSlots {
  std::string host;
  int slots = 1;
};

struct HostFile {
  std::string path;
  std::vector<HostSlots> hosts;  // in the file's order, without duplicates
  int slots() const;             // of all hosts
};

// Throws Error(kConfig) naming file:line and the expected syntax; an empty file is also an error.
HostFile read_host_file(const std::string& path);

// "node1:4,node2:4", as Open MPI's --host and MPICH's -hosts take it.
std::string host_list(const HostFile& file);

std::string host_name();  // of this machine

// Whether the name belongs to this machine or to the loopback interface.
bool is_this_machine(const std::string& host);

}  // namespace coupler::cli
