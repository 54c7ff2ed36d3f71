// What ranks find in their environment: the launcher's own variables and those that a launch adds.
// Plain functions; no thread rule.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/launch_plan.h"

namespace coupler::cli {

using Variables = std::map<std::string, std::string>;

// What all processes get, whoever starts them: COUPLER_CONFIG_FILE and COUPLER_OVERRIDES (the
// launcher's --config and -o, one a line) and COUPLER_TERMINAL.
Variables common_variables(const LaunchPlan& plan);

// As above, with OMP_NUM_THREADS: threads_per_process, else left as it is, else the cores a rank
// may use.
Variables local_variables(const LaunchPlan& plan);

// Of a rank of this machine: who it is (rendezvous/process_info.h). With job_file they meet in the
// launcher's store; without one, on several machines, at plan.main_address, in torchrun's words.
Variables rank_variables(const LaunchPlan& plan, int local_rank, const std::string& job_file);

// Our own environment, but for the rank variables of an outer `coupler launch` (and with owns_ranks
// of torchrun and its like), with `added`: NAME=value.
std::vector<std::string> environment_with(const Variables& added, bool owns_ranks = false);

// The processors of each rank of this machine; empty lists where they are not bound.
std::vector<std::vector<int>> rank_cpus(const LaunchPlan& plan);

}  // namespace coupler::cli
