// The environment of ranks: the launcher's own variables and those that a launch adds. Plain
// functions; no threading rule.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/launch_plan.h"

namespace coupler::cli {

using Variables = std::map<std::string, std::string>;

// What all processes get under every launcher: COUPLER_CONFIG_FILE and COUPLER_OVERRIDES (the
// launcher's configuration file, and its -o, one per line), COUPLER_TERMINAL, and if set,
// OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES and COUPLER_RESTART_COUNT.
Variables common_variables(const LaunchPlan& plan);

// As above, always with OMP_NUM_THREADS: launch.threads_per_process, else the environment's, else
// the number of cores per rank.
Variables local_variables(const LaunchPlan& plan);

// As above, plus the identity of a rank of this machine (rendezvous/process_info.h). On one machine
// ranks meet in the launcher's store (job_file); on several, at plan.main_address, given by
// torchrun's variables.
Variables rank_variables(const LaunchPlan& plan, int local_rank, const std::string& job_file);

// COUPLER_OVERRIDES: an outer launcher's come first, then ours, one per line.
std::string joined_overrides(const std::vector<std::string>& ours);

// Our own environment plus `added`, as NAME=value, without the rank variables of an outer
// `coupler launch` (with owns_ranks, also of torchrun and the like).
std::vector<std::string> environment_with(const Variables& added, bool owns_ranks = false);

// The processors of each rank of this machine; empty lists if ranks are not bound.
std::vector<std::vector<int>> rank_cpus(const LaunchPlan& plan);

}  // namespace coupler::cli
