// become: replaces this process with another of Coupler's programs. Single-threaded.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

// command[0] is a path. Throws Error(kIo) if it cannot be run.
[[noreturn]] void become(const std::vector<std::string>& command, const std::string& hint);

}  // namespace coupler::cli
