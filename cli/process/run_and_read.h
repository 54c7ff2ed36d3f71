// Runs a program and reads what it prints, with a deadline. Not for use in threads: it forks.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace coupler::cli {

// What argv printed on standard output; null where it cannot be started, fails, or is not done in
// time (it is killed then). argv[0] is searched in PATH.
std::optional<std::string> run_and_read(const std::vector<std::string>& argv,
                                        std::chrono::milliseconds deadline);

// The first match of an executable file in PATH, "" for none.
std::string find_in_path(const std::string& program);

}  // namespace coupler::cli
