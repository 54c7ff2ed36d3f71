// LaunchPlan: what `coupler launch` was asked to do, checked and complete. Plain data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace coupler::cli {

struct LaunchPlan {
  int processes = 1;
  bool prefix = false;                 // "[rank 0] " before every line of output
  std::string program;                 // as the user wrote it
  std::string path;                    // what is executed
  std::vector<std::string> arguments;  // the program's, argv[0] included
  std::vector<std::string> overrides;  // -o key=value, passed on to the ranks
  Config config;
  bool help = false;  // print kLaunchUsage and do nothing
};

extern const char kLaunchUsage[];

// Reads the command line (the program's own arguments stay untouched) and the configuration, finds
// the program. Throws Error(kUsage or kConfig) naming what is wrong.
LaunchPlan make_launch_plan(int argc, char** argv);

// The environment of rank `rank`, or of mpirun for all ranks where rank is nothing: the launcher's
// own, with the variables of rendezvous/process_info.h, COUPLER_CONFIG_FILE and COUPLER_OVERRIDES
// (the launcher's --config and -o, one a line), OMP_NUM_THREADS and COUPLER_TERMINAL. job_file ""
// where the ranks need none.
std::vector<std::string> rank_environment(const LaunchPlan& plan, std::optional<int> rank,
                                          const std::string& job_file);

}  // namespace coupler::cli
