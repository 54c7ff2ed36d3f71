// What --dry-run and --print-env say about a launch. Plain data and functions; no thread rule.
#pragma once

#include <string>
#include <vector>

#include "cli/launch/launch_plan.h"
#include "cli/launch/rank_environment.h"

namespace coupler::cli {

struct LaunchDescription {
  std::string started_by;            // "srun" and kin; "": ourselves
  std::vector<std::string> command;  // what would be executed, argv[0] first
  Variables added;                   // for all ranks, where others start them
  bool ours = false;                 // whether we, or our shims, bind the ranks and keep their logs
};

std::string describe_launch(const LaunchPlan& plan, const LaunchDescription& launch);

// The variables that a launch adds, NAME=value as a shell reads it, for each rank where we start
// them ourselves.
std::string describe_environment(const LaunchPlan& plan, const LaunchDescription& launch);

}  // namespace coupler::cli
