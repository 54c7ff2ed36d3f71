// TrackioTracker: a run in a project of Trackio (github.com/gradio-app/trackio) on this machine, as
// its Python package stores one, for `trackio show` and `trackio.Api`. Metrics, tables and the
// run's configuration are rows of the project's database, images files in its media folder,
// artifacts versions in its artifact store. Threads: see tracker.h.
#pragma once

#include <coupler/tracker.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "track/trackio_database.h"
#include "track/trackio_folder.h"

namespace coupler::track {

class TrackioTracker : public Tracker {
 public:
  std::string name() const override { return "trackio"; }
  void start(const TrackerRun& run) override;
  void connect() override;
  void log(const TrackedStep& entry) override;
  bool log_image(const TrackedImage& image, int64_t step, double time) override;
  bool log_table(const TrackedTable& table, int64_t step, double time) override;
  // Not held by the inbox.
  bool log_artifact(const TrackedArtifact& artifact, int64_t step, double time) override;
  void flush() override;
  void finish() override { flush(); }
  // The database, or the inbox.
  std::string location() const override;

 private:
  // Opens the project and finds the run that goes on.
  void open();
  void add_row(std::string metrics, int64_t step, double time);
  void write_fragment();

  std::optional<TrackioFolder> folder_;
  std::string resume_;  // "never", "allow" or "must"
  TrackioRun run_;      // the id is empty until open() has succeeded
  std::string config_;  // JSON
  std::vector<TrackioRow> pending_;
  bool config_written_ = false;
  std::string writer_;     // its folder in the inbox
  int64_t fragments_ = 0;  // files written there
};

}  // namespace coupler::track
