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

#include "config/config.h"
#include "track/trackers.h"

namespace coupler {

class Tracking {
 public:
  // settings: log_with, project_dir and logging_dir. dry: no tracker is started.
  void start(const config::TrainingConfig& settings, int rank, bool dry, const std::string& project,
             LogValues config, const TrackerOptions& options);
  void log(LogValues values, std::optional<int64_t> step);
  std::shared_ptr<Tracker> find(const std::string& name) const;
  void end();

 private:
  std::vector<std::string> names_;                     // of all requested trackers, on every rank
  std::unique_ptr<track::Trackers> trackers_;          // null before start
  std::vector<std::shared_ptr<Tracker>> not_started_;  // in a dry run
  bool ended_ = false;
};

}  // namespace coupler
