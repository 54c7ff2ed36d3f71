// Runs a program and reads its output, with a deadline. Not for use in threads: it forks.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace coupler::cli {

// What argv printed on standard output; null if it cannot be started, fails, prints more than
// 64 KiB, or misses the deadline and is killed. argv[0] is looked up in PATH.
std::optional<std::string> run_and_read(const std::vector<std::string>& argv,
                                        std::chrono::milliseconds deadline);

// The first executable file of that name in PATH; "" if there is none.
std::string find_in_path(const std::string& program);

// become: replaces this process with another of Coupler's programs. Single-threaded.

// command[0] is a path. Throws Error(kIo) if it cannot be run.
[[noreturn]] void become(const std::vector<std::string>& command, const std::string& hint);

}  // namespace coupler::cli
