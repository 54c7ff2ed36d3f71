// What coupler estimate and coupler config recommend have in common: their command line.
// Single-threaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/text/command.h"
#include "config/config.h"

namespace coupler::cli {

struct EstimateRequest {
  ConfigRequest config;
  int64_t world = 0;                 // 0: launch.processes
  uint64_t limit = 0;                // bytes; 0: none given
  std::vector<std::string> program;  // after --
  std::string disk;                  // the folder of settings that use a disk
};

// Throws Error(kUsage) naming the option with a wrong value.
EstimateRequest read_estimate_request(const Arguments& arguments);

Command recommend_command();  // a subcommand of `coupler config`

}  // namespace coupler::cli
