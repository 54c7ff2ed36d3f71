// ForeignCommand: another launcher's command line that starts the ranks of a plan. Plain data;
// run_foreign is single-threaded.
#pragma once

#include <string>
#include <vector>

#include "cli/launch/rank_environment.h"
#include "cli/launch/restarts.h"

namespace coupler::cli {

struct ForeignCommand {
  std::string launcher;                // "srun", for messages
  std::vector<std::string> arguments;  // the first is its path
  Variables added;                     // added to our own environment
};

// Runs the launcher until it has ended; its exit code becomes the job's. Signals are forwarded to
// the launcher, which decides what to pass on to the ranks.
JobEnd run_foreign(const ForeignCommand& command);

// Quoted for a shell if needed: 'a b'.
std::string shell_word(const std::string& text);
std::string shell_line(const std::vector<std::string>& words);

}  // namespace coupler::cli
