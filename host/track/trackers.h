// Trackers: those of one run, started together, told the same and ended together. Used by the
// thread that trains.
#pragma once

#include <coupler/tracker.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "track/tracker_queue.h"

namespace coupler {

class Trackers {
 public:
  // Starts them, in order; throws what the first one throws that does not start.
  Trackers(const std::vector<std::shared_ptr<Tracker>>& trackers, const TrackerRun& run,
           const TrackerOptions& options);
  ~Trackers();  // ends them
  Trackers(const Trackers&) = delete;
  Trackers& operator=(const Trackers&) = delete;

  bool empty() const { return queues_.empty(); }
  // Hands the values over; without a step it is one more than the last one's, 0 at first.
  void log(TrackValues values, std::optional<int64_t> step);
  // Null where there is none of that name.
  std::shared_ptr<Tracker> find(const std::string& name) const;
  std::vector<std::string> names() const;
  // Waits until all have written everything, or for TrackerOptions::end_timeout. Later calls do
  // nothing.
  void end();

 private:
  std::vector<std::unique_ptr<TrackerQueue>> queues_;
  std::chrono::milliseconds end_timeout_;
  int64_t next_step_ = 0;
  bool ended_ = false;
};

}  // namespace coupler
