// StopSchedule: when a job that has failed, or was told to end, is signalled. Knows times only;
// single-threaded.
//
// After the first failure others get a moment to fail too, so that the cause can be told from its
// consequences, and a longer one while nothing but consequences was seen: the rank that knows more
// may be slow to say it. Then SIGTERM, then SIGKILL, all within a second for local ranks. After a
// signal from outside the ranks get time to finish their work (a checkpoint), a second signal ends
// them.
#pragma once

#include <chrono>
#include <optional>

#include "rendezvous/socket_io.h"

namespace coupler::cli {

class StopSchedule {
 public:
  // For local ranks; mpirun, which stops the others by itself, gets more time.
  struct Times {
    std::chrono::milliseconds settle{150};
    std::chrono::milliseconds settle_without_cause{700};
    std::chrono::milliseconds terminate{250};
    std::chrono::milliseconds interrupted = std::chrono::seconds(30);
  };
  explicit StopSchedule(const Times& times) : times_(times) {}

  // To be called with all that is known, again when more is.
  void failed(Deadline first, std::optional<Deadline> cause);
  void interrupted(Deadline when);  // a signal that was forwarded
  std::optional<Deadline> next() const { return next_; }
  bool told_to_stop() const { return told_; }  // from then on ends are consequences
  // The signal that is due, if any; to be sent by the caller.
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
