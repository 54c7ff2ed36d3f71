// Finds programs, and runs one and reads its output, with a deadline. Not for use in threads: it
// forks.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace coupler::cli {

// What argv printed on standard output; null if it cannot be started, fails, prints more than
// 64 KiB, or misses the deadline and is killed. argv[0] is looked up in PATH.
std::optional<std::string> capture_output(const std::vector<std::string>& argv,
                                          std::chrono::milliseconds deadline);

// The path of a program: `name` itself if it has a slash, else as found in PATH. Throws
// Error(kUsage) naming the program and the problem.
std::string find_program(const std::string& name);

// This program's own path; "unknown" without /proc.
std::string own_program();

// A file that was installed, or built, with this program: the first of these paths, relative to its
// folder, that exists. Throws Error(kIo), with the hint, if none does.
std::string installed_file(const std::vector<std::string>& paths, const std::string& hint);

// A null-terminated argv that points into words, which must outlive it unchanged. The callers that
// take it, exec included, do not write to its characters.
std::vector<char*> argv_of(const std::vector<std::string>& words);

// Replaces this process with another of Coupler's programs. command[0] is a path. Throws Error(kIo)
// if it cannot be run.
[[noreturn]] void exec_program(const std::vector<std::string>& command, const std::string& hint);

}  // namespace coupler::cli
