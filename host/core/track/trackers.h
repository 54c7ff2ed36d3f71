// Trackers: all trackers of one run. They start together, receive the same values and end together.
// Used by the training thread.
#pragma once

#include <coupler/tracker.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "track/tracker_queue.h"

namespace coupler::track {

class Trackers {
 public:
  // Starts them in order; throws the exception of the first one that fails to start.
  Trackers(const std::vector<std::shared_ptr<Tracker>>& trackers, const TrackerRun& run,
           const TrackerOptions& options);
  ~Trackers();  // ends them
  Trackers(const Trackers&) = delete;
  Trackers& operator=(const Trackers&) = delete;

  bool empty() const { return queues_.empty(); }
  // Enqueues the values; without a step, it is one more than the last one, starting at 0.
  void log(TrackValues values, std::optional<int64_t> step);
  // The same; without a step, it is the last one.
  void log_media(TrackedMedia media, std::optional<int64_t> step);
  // Null if there is none of that name.
  std::shared_ptr<Tracker> find(const std::string& name) const;
  // Waits until all have written everything, at most TrackerOptions::end_timeout. Later calls do
  // nothing.
  void end();

 private:
  std::vector<std::unique_ptr<TrackerQueue>> queues_;
  std::chrono::milliseconds end_timeout_;
  int64_t next_step_ = 0;
  bool ended_ = false;
};

// The trackers that can be selected by name: csv, jsonl, tensorboard, wandb, trackio, mlflow,
// and those of register_tracker. [any-thread]

// All of them, built-in ones first.
std::vector<std::string> tracker_names();

// Those that "all" stands for: without mlflow if MLFLOW_TRACKING_URI is not set, and without
// trackio, which writes elsewhere, if TRACKIO_DIR is not.
std::vector<std::string> names_of_all_trackers();

// Null if there is none of that name. Throws what a registered factory throws, and
// Error(kInvalidArgument) if the factory returns null.
std::shared_ptr<Tracker> make_tracker(const std::string& name);

}  // namespace coupler::track
