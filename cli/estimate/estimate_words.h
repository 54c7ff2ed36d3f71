// The command line of coupler estimate and coupler config recommend. Single-threaded.
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
  std::vector<std::string> program;  // after --
  std::string disk = "/scratch";     // the folder of settings that use a disk
};

// Throws Error naming the argument, and for an unknown one the nearest known.
EstimateWords read_estimate_words(const std::string& command, int argc, char** argv);

}  // namespace coupler::cli
