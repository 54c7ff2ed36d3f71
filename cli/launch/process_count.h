// ProcessCount: how many processes a job has, and on which machines of a hostfile, as the options
// and the configuration say it together. Plain data and functions; no threading rule.
#pragma once

#include "cli/launch/host_file.h"
#include "cli/launch/launch_options.h"
#include "config/config.h"

namespace coupler::cli {

struct ProcessCount {
  int processes = 1;   // on all machines together
  HostFile host_file;  // what is left of it; empty: none
};

// Call before count_processes(): turns options about a hostfile's machines into others if there is
// no hostfile, and --machines into a choice among them if there is one.
void apply_host_choice(LaunchOptions& options);

// machines: each runs one launcher. Throws Error(kUsage) naming the options that contradict each
// other or ask for too much, and Error(kConfig) for a wrong hostfile.
ProcessCount count_processes(const LaunchOptions& options, const config::Config& config,
                             int machines);

}  // namespace coupler::cli
