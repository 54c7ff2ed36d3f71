// LaunchPlan: what `coupler launch` was asked to do, checked and complete. Plain data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/launch/host_file.h"
#include "cli/launch/launch_options.h"
#include "cli/machine/cpu_binding.h"
#include "config/config.h"

namespace coupler::cli {

struct LaunchPlan {
  Via via = Via::kLocal;
  int processes = 1;         // of all machines
  int machines = 1;          // each gets processes / machines of them
  int machine_rank = 0;      // which of them this is
  std::string main_address;  // of machine 0, where there are several
  int main_port = 0;
  HostFile host_file;  // of mpirun; empty: this machine
  Bind bind = Bind::kNone;
  std::string log_dir;  // absolute; "": none
  std::string outcome;  // a file for what became of the job; "": none
  bool prefix = false;  // "[rank 0] " before every line of output
  bool print = false;   // the script, not the run
  bool print_env = false, dry_run = false;
  int max_restarts = 0;                // of a job that failed
  int restart = 0;                     // which start this is: 0 is the first
  bool multi_gpu = false;              // CUDA devices were asked for by Accelerate's word
  bool owns_ranks = false;             // --machines: rank variables of others are of no account
  bool config_given = false;           // --config, not found as ./train.toml
  std::string image, name, manifest;   // of a manifest
  std::string program;                 // as the user wrote it
  std::string path;                    // what is executed
  std::vector<std::string> arguments;  // the program's, argv[0] included
  std::vector<std::string> overrides;  // -o key=value, passed on to the ranks
  Config config;
  bool help = false;  // print the help and do nothing

  int per_machine() const { return processes / machines; }
  int first_rank() const { return machine_rank * per_machine(); }  // of this machine
};

// Reads the command line (the program's own arguments stay untouched) and the configuration, finds
// the program. Throws Error(kUsage or kConfig) naming what is wrong.
LaunchPlan make_launch_plan(int argc, char** argv);

}  // namespace coupler::cli
