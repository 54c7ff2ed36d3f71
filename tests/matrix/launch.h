// Launch: one command with its output, ended where it takes too long. Single-threaded.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace coupler::matrix {

struct LaunchResult {
  int code = 0;  // 128 + signal where one ended it
  bool overdue = false;
  std::string output;  // standard output and error together
};

// Runs command in folder, in a process group of its own, of which nothing is left afterwards.
LaunchResult launch(const std::vector<std::string>& command, const std::string& folder,
                    std::chrono::seconds limit);

}  // namespace coupler::matrix
