// Tracking: the trackers of an Accelerator, from init_trackers to end_training. Used by the
// training thread.
#pragma once

#include <coupler/log_values.h>
#include <coupler/tracker.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "track/trackers.h"

namespace coupler {

class Tracking {
 public:
  // From training.log_with, training.project_dir and training.logging_dir. With `dry`, no tracker
  // is started.
  struct Settings {
    std::vector<std::string> log_with;
    std::string folder;
    int rank = 0;
    bool dry = false;
  };

  void start(const Settings& settings, const std::string& project, LogValues config,
             const TrackerOptions& options);
  void log(LogValues values, std::optional<int64_t> step);
  std::shared_ptr<Tracker> find(const std::string& name) const;
  void end();

 private:
  std::vector<std::string> names_;  // of all requested trackers, on every rank
  std::unique_ptr<track::Trackers> trackers_;
  std::vector<std::shared_ptr<Tracker>> not_started_;  // in a dry run
  bool started_ = false;
  bool ended_ = false;
};

}  // namespace coupler
