// HostFile: the machines of a job and how many processes each takes, read from a file. Plain data
// and functions; no thread rule.
//
// One machine a line, "node1 slots=4" (Open MPI, deepspeed) or "node1:4" (MPICH); without a number
// one process. "#" begins a comment. A machine on several lines takes the sum.
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
  std::vector<HostSlots> hosts;  // in the file's order, none twice
  int slots() const;             // of all
};

// Throws Error(kConfig) naming file:line and what is meant; an empty file is an error too.
HostFile read_host_file(const std::string& path);

// "node1:4,node2:4", as the option --host of Open MPI and -hosts of MPICH take it.
std::string host_list(const HostFile& file);

// Whether the name is one of this machine's, or of the loopback interface.
bool is_this_machine(const std::string& host);

}  // namespace coupler::cli
