// How a job ended, and starting it again where it failed. Single-threaded.
#pragma once

#include <functional>
#include <string>

#include "cli/launch/launch_plan.h"
#include "cli/launch/rank_end.h"

namespace coupler::cli {

struct JobEnd {
  int code = 0;              // of `coupler launch`
  bool interrupted = false;  // by a signal to us: the user wants it to end
};

// For programs that start this one: outcome.json() as that file, or into it where it is a link, a
// pipe or a device; nothing for "". A file that cannot be written is said on standard error: the
// job is over whatever becomes of it.
void write_outcome(const std::string& file, const JobOutcome& outcome);

// Whether another start can help: not after a signal, and not where the command line, the
// configuration or a plugin is wrong (2, 3).
bool is_worth_a_restart(const JobEnd& end);

// Runs the job until it succeeds, cannot succeed, or has been restarted plan.max_restarts times.
// plan.restart counts; what a start had (store, secret, processes) is gone before the next.
int run_with_restarts(LaunchPlan& plan, const std::function<JobEnd()>& run);

}  // namespace coupler::cli
