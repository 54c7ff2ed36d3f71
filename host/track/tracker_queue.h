// TrackerQueue: a tracker with a thread and a bounded queue of its own, so that nothing it does is
// felt where values are logged: they are handed over, not written. The thread sleeps between
// flushes: it is not woken for each value. push, end and wait_ended belong to one thread.
#pragma once

#include <coupler/tracker.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace coupler {

struct TrackerQueueLimits {
  size_t length = 10000;
  std::chrono::milliseconds flush_every{500};
  std::chrono::milliseconds first_retry{500};
  std::chrono::milliseconds longest_retry{30000};
  int failures = 3;  // in a row, that disable
};

class TrackerQueue {
 public:
  using Clock = std::chrono::steady_clock;

  // Of a tracker that was started.
  TrackerQueue(std::shared_ptr<Tracker> tracker, const TrackerQueueLimits& limits);
  ~TrackerQueue();  // where it was not ended: lets the thread go, with what waits
  TrackerQueue(const TrackerQueue&) = delete;
  TrackerQueue& operator=(const TrackerQueue&) = delete;

  const std::shared_ptr<Tracker>& tracker() const;

  // Never waits for the tracker. Where the queue is full the entry is dropped, and the first time a
  // warning is logged.
  void push(const std::shared_ptr<const TrackedStep>& entry);

  // Has the thread write what waits and finish, by that time.
  void end(Clock::time_point deadline);
  // Until it has, or the time is over: then the thread is left to itself, and whatever it had not
  // written is counted as lost. Logs a warning where anything was.
  void wait_ended();

  // Entries that did not reach the tracker: dropped, failed, or left at the end. [any-thread]
  int64_t lost() const;

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // the thread's, too: it may outlive this
};

}  // namespace coupler
