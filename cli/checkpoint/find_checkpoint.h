// Which checkpoint a path on the command line means. Single-threaded.
#pragma once

#include <string>

namespace coupler::cli {

// Whether the folder has a manifest.
bool is_checkpoint(const std::string& path);

// Whether the folder holds anything that is called like a checkpoint.
bool holds_checkpoints(const std::string& path);

// The path itself, or the newest valid one in it; says on standard error which are not taken.
// Throws Error(kIo) that says what the path is instead.
std::string find_checkpoint(const std::string& path);

}  // namespace coupler::cli
