// --via slurm: srun inside an allocation, or an sbatch script. Plain functions; no threading rule.
#pragma once

#include <string>

#include "cli/launch/foreign_command.h"
#include "cli/launch/launch_plan.h"

namespace coupler::cli {

// Throws Error(kUsage) outside an allocation, if srun is missing, or if the allocation is smaller
// than the plan.
ForeignCommand srun_command(const LaunchPlan& plan);

std::string sbatch_script(const LaunchPlan& plan);

}  // namespace coupler::cli
