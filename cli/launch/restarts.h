// How a job ended, and restarting it if it failed. Single-threaded.
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

// For programs that start this one: writes outcome.json() to the file, replacing a regular file and
// writing into a link, pipe or device; nothing for "". If that fails, it reports so on standard
// error and does not throw, because the job is already over.
void write_outcome(const std::string& file, const JobOutcome& outcome);

// Whether another start can help: not after a signal, and not if the command line, the
// configuration or a plugin is wrong (codes 2 and 3).
bool is_worth_a_restart(const JobEnd& end);

// Runs the job until it succeeds, cannot succeed, or has been restarted plan.max_restarts times.
// Counts in plan.restart. Each start has its own store, secret and processes.
int run_with_restarts(LaunchPlan& plan, const std::function<JobEnd()>& run);

}  // namespace coupler::cli
