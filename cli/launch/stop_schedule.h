// StopSchedule: decides when to signal a job that has failed or was interrupted. It only computes
// times; single-threaded.
//
// After the first failure, other ranks get a moment to fail too, so that the cause can be told from
// its consequences. They get longer while only consequences were seen, as the rank that knows the
// cause may report it late. Then follow SIGTERM and SIGKILL, all within a second for local
// ranks. After a signal from outside, ranks get time to finish their work (a checkpoint); a second
// signal kills them.
#pragma once

#include <chrono>
#include <optional>

#include "base/socket.h"

namespace coupler::cli {

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
  bool told_to_stop() const { return told_; }  // from then on ends are consequences
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

}  // namespace coupler::cli
