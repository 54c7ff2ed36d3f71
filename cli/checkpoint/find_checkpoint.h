// Resolves a path on the command line to a checkpoint. Single-threaded.
#pragma once

#include <string>

namespace coupler::cli {

// Whether the folder has a manifest.
bool is_checkpoint(const std::string& path);

// Whether the folder holds anything named like a checkpoint.
bool holds_checkpoints(const std::string& path);

// The path itself if it is a checkpoint, else the newest valid one in it; reports skipped ones on
// standard error. Throws Error(kIo) naming what the path is instead.
std::string find_checkpoint(const std::string& path);

}  // namespace coupler::cli
