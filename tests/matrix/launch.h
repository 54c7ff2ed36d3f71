// Launch: runs one command, captures its output, and ends it if it takes too long. Single-threaded.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace coupler::matrix {

struct LaunchResult {
  int code = 0;  // 128 + signal if a signal ended it
  bool overdue = false;
  std::string output;  // standard output and standard error together
};

// Runs command in folder, in its own process group. No process of that group is left on return.
LaunchResult launch(const std::vector<std::string>& command, const std::string& folder,
                    std::chrono::seconds limit);

}  // namespace coupler::matrix
