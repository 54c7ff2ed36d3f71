// TrackerQueue: a tracker with its own thread and bounded queue, so that logging a value only
// enqueues it and never waits for the tracker. The thread sleeps between flushes and is not woken
// for each value. One thread calls push, end and wait_ended.
#pragma once

#include <coupler/tracker.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace coupler::track {

struct TrackerQueueLimits {
  size_t length = 10000;
  size_t media_bytes = size_t{256} << 20;  // of waiting images and tables
  std::chrono::milliseconds flush_every{500};
  std::chrono::milliseconds first_retry{500};
  std::chrono::milliseconds longest_retry{30000};
  int failures = 3;  // consecutive ones that disable the tracker
};

// Images, tables and artifacts of one call.
struct TrackedMedia {
  std::vector<TrackedImage> images = {};
  std::vector<TrackedTable> tables = {};
  std::vector<TrackedArtifact> artifacts = {};
  int64_t step = 0;
  double time = 0;  // seconds since 1970

  // In memory, roughly.
  size_t bytes() const;
};

class TrackerQueue {
 public:
  using Clock = std::chrono::steady_clock;

  // The tracker must have been started.
  TrackerQueue(std::shared_ptr<Tracker> tracker, const TrackerQueueLimits& limits);
  ~TrackerQueue();  // if not ended: abandons the thread and the queued entries
  TrackerQueue(const TrackerQueue&) = delete;
  TrackerQueue& operator=(const TrackerQueue&) = delete;

  const std::shared_ptr<Tracker>& tracker() const;

  // Never waits for the tracker. If the queue is full, the entry is dropped; the first time a
  // warning is logged.
  void push(const std::shared_ptr<const TrackedStep>& entry);
  // The same, and an entry that does not fit in limits.media_bytes is dropped, too.
  void push_media(const std::shared_ptr<const TrackedMedia>& entry);

  // Tells the thread to write the queued entries and finish by the deadline.
  void end(Clock::time_point deadline);
  // Waits until it has, or the deadline has passed: the thread is then abandoned, and what it has
  // not written counts as lost. Logs a warning if anything is lost.
  void wait_ended();

  // Entries that did not reach the tracker: dropped, failed, or not written at the end.
  // [any-thread]
  int64_t lost() const;

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this
};

}  // namespace coupler::track
