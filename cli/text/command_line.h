// CommandLine: what stands behind a command's name: Coupler's own --config and -o, and flags
// without value. Single-threaded.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "config/config.h"

namespace coupler::cli {

struct CommandLine {
  ConfigRequest config;
  std::set<std::string> flags;  // those given; "--help" among them

  bool has(const std::string& flag) const { return flags.count(flag) != 0; }
};

// Throws Error(kUsage) for anything that is neither one of flags nor --help, naming the nearest.
CommandLine read_command_line(int argc, char** argv, const std::vector<std::string>& flags);

}  // namespace coupler::cli
