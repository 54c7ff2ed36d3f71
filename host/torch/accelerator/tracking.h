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
  void log_images(const std::vector<LogImage>& images, std::optional<int64_t> step);
  void log_table(const TrackedTable& table, std::optional<int64_t> step);
  void log_artifact(const std::string& path, const std::string& name, std::optional<int64_t> step);
  std::shared_ptr<Tracker> find(const std::string& name) const;
  void end();
  // Warns once if settings name trackers that were never started.
  void warn_if_unused(const config::TrainingConfig& settings, int rank);

 private:
  // Whether this rank logs. Throws Error(kUsage) naming `call` before start and after end.
  bool logs(const char* call) const;

  std::vector<std::string> names_;                     // of all requested trackers, on every rank
  std::unique_ptr<track::Trackers> trackers_;          // null before start
  std::vector<std::shared_ptr<Tracker>> not_started_;  // in a dry run
  bool ended_ = false;
  bool warned_ = false;
};

}  // namespace coupler
