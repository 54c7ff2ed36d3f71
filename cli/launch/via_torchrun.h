// --via torchrun: its command line. Plain functions; no threading rule.
#pragma once

#include "cli/launch/foreign_command.h"
#include "cli/launch/launch_plan.h"

namespace coupler::cli {

// Throws Error(kUsage) if torchrun is missing.
ForeignCommand torchrun_command(const LaunchPlan& plan, int max_restarts);

}  // namespace coupler::cli
