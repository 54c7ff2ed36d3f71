// ForeignCommand: another launcher's command line that starts the ranks of a plan, and running it.
// Plain data; run_foreign is single-threaded.
#pragma once

#include <string>
#include <vector>

#include "cli/launch/rank_environment.h"
#include "cli/launch/restarts.h"

namespace coupler::cli {

struct ForeignCommand {
  std::string launcher;                // "srun", for messages
  std::vector<std::string> arguments;  // the first is its path
  Variables added;                     // to our own environment
};

// Until the launcher has ended; its exit code is the job's. Signals go to it, as `coupler launch`
// passes them on; what the ranks do about them is the launcher's business.
JobEnd run_foreign(const ForeignCommand& command);

// As a shell would read it: 'a b' where quotes are needed.
std::string shell_word(const std::string& text);
std::string shell_line(const std::vector<std::string>& words);

}  // namespace coupler::cli
