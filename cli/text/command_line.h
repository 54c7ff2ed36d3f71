// CommandLine: the arguments after a command's name: Coupler's own --config and -o, and flags
// without a value. Single-threaded.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "config/config.h"

namespace coupler::cli {

struct CommandLine {
  ConfigRequest config;
  std::set<std::string> flags;  // the given ones, including "--help"

  bool has(const std::string& flag) const { return flags.count(flag) != 0; }
};

// Throws Error(kUsage) for anything else than one of flags, --help, --config or -o, naming the
// nearest.
CommandLine read_command_line(int argc, char** argv, const std::vector<std::string>& flags);

}  // namespace coupler::cli
