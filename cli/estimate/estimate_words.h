// What stands behind coupler estimate and coupler config recommend. Single-threaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace coupler::cli {

struct EstimateWords {
  ConfigRequest config;
  bool help = false, json = false, all = false;
  int64_t world = 0;                 // 0: launch.processes
  uint64_t limit = 0;                // bytes; 0: none given
  std::string path;                  // of a checkpoint or config.json
  std::vector<std::string> program;  // behind --
  std::string disk = "/scratch";     // a folder for what goes to a disk
};

// Throws Error(kUsage) naming the word, and the nearest to an unknown one.
EstimateWords read_estimate_words(const std::string& command, int argc, char** argv);

}  // namespace coupler::cli
