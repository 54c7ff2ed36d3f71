// What --dry-run and --print-env print about a launch. Plain data and functions; no threading rule.
#pragma once

#include <string>
#include <vector>

#include "cli/launch/launch_plan.h"
#include "cli/launch/rank_environment.h"

namespace coupler::cli {

struct LaunchDescription {
  std::string started_by;            // "srun" and the like; "": `coupler launch` itself
  std::vector<std::string> command;  // what would be executed, argv[0] first
  Variables added;                   // for all ranks, if another launcher starts them
  bool ours = false;                 // whether we or our shims bind the ranks and write their logs
};

std::string describe_launch(const LaunchPlan& plan, const LaunchDescription& launch);

// The variables that a launch adds, as NAME=value quoted for a shell; per rank if we start the
// ranks ourselves.
std::string describe_environment(const LaunchPlan& plan, const LaunchDescription& launch);

}  // namespace coupler::cli
