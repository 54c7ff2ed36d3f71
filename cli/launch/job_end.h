// How a job ends: when its ranks are stopped, with which code, and whether it starts again.
// Single-threaded.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "base/socket.h"
#include "cli/launch/launch_plan.h"
#include "cli/launch/rank_exit.h"

namespace coupler::cli {

// StopSchedule: decides when to signal a job that has failed or was interrupted. It only computes
// times.
//
// After the first failure, other ranks get a moment to fail too, so that the cause can be told from
// its consequences. They get longer while only consequences were seen, as the rank that knows the
// cause may report it late. Then follow SIGTERM and SIGKILL, all within a second for local
// ranks. After a signal from outside, ranks get time to finish their work (a checkpoint); a second
// signal kills them.
class StopSchedule {
 public:
  // Defaults for local ranks; mpirun, which stops the others by itself, gets more time.
  struct Times {
    std::chrono::milliseconds settle{150};
    std::chrono::milliseconds settle_without_cause{700};
    std::chrono::milliseconds terminate{250};
    std::chrono::milliseconds interrupted = std::chrono::seconds(30);
  };
  explicit StopSchedule(const Times& times) : times_(times) {}

  // Call with all that is known so far, and again when more is known.
  void failed(Deadline first, std::optional<Deadline> cause);
  void interrupted(Deadline when);  // a signal was forwarded
  std::optional<Deadline> next() const { return next_; }
  bool ordered_to_stop() const { return told_; }  // from then on ends are consequences
  // The signal that is due, if any; the caller sends it.
  std::optional<int> due(Deadline now);

 private:
  enum class Stage { kRunning, kSettling, kTerminating, kKilled };

  Times times_;
  Stage stage_ = Stage::kRunning;
  bool told_ = false;
  int interrupts_ = 0;
  std::optional<Deadline> next_;
};

struct JobExit {
  int code = 0;              // of `coupler launch`
  bool interrupted = false;  // by a signal to us: the user wants it to end
};

// For programs that start this one: writes outcome.json() to the file, replacing a regular file and
// writing into a link, pipe or device; nothing for "". If that fails, it reports so on standard
// error and does not throw, because the job is already over.
void write_outcome(const std::string& file, const JobOutcome& outcome);

// Runs the job until it succeeds, cannot succeed, or has been restarted plan.max_restarts times.
// Counts in plan.restart. Each start has its own store, secret and processes.
int run_with_restarts(LaunchPlan& plan, const std::function<JobExit()>& run);

}  // namespace coupler::cli
