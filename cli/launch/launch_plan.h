// LaunchPlan: what `coupler launch` is to do, checked and complete. Plain data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/launch/host_file.h"
#include "cli/launch/launch_options.h"
#include "cli/machine/cpu_binding.h"
#include "config/config.h"

namespace coupler::cli {

struct LaunchPlan : LaunchSettings {
  int processes = 1;         // on all machines together
  int machines = 1;          // each runs processes / machines of them
  int machine_rank = 0;      // index of this machine
  std::string main_address;  // of machine 0, if there are several
  int main_port = 0;
  HostFile host_file;  // for mpirun; empty: this machine
  Bind bind = Bind::kNone;
  int restart = 0;                     // index of this start, from 0
  bool multi_gpu = false;              // Accelerate's --multi_gpu requested CUDA devices
  bool owns_ranks = false;             // --machines: ignore the rank variables of outer launchers
  bool config_given = false;           // by --config, not found as ./train.toml
  std::string program;                 // as the user wrote it
  std::string path;                    // what is executed
  std::vector<std::string> arguments;  // the program's, including argv[0]
  std::vector<std::string> overrides;  // -o key=value, passed on to the ranks
  config::Config config;

  int per_machine() const { return processes / machines; }
  int first_rank() const { return machine_rank * per_machine(); }  // of this machine
};

// Reads the configuration and finds the program. Throws Error(kUsage or kConfig) naming what is
// wrong.
LaunchPlan make_launch_plan(LaunchOptions options);

}  // namespace coupler::cli
