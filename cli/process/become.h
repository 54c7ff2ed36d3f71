// become: this process goes on as another program of Coupler's. Single-threaded.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

// command[0] is a path. Throws Error(kIo) where it cannot be run.
[[noreturn]] void become(const std::vector<std::string>& command, const std::string& hint);

}  // namespace coupler::cli
