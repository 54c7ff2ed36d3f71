// WandbTracker: an offline run as the client of Weights & Biases writes it, which `wandb sync`
// uploads: wandb/offline-run-TIME-ID with run-ID.wandb, a log of protobuf records, and files/ with
// images and tables. No server is contacted. Threads: see tracker.h.
//
// Formats: wandb/proto/wandb_internal.proto and wandb/sdk/internal/datastore.py of
// github.com/wandb/wandb. The log is LevelDB's with CRC-32 and a header of its own.
#pragma once

#include <coupler/tracker.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "track/file_trackers.h"

namespace coupler::track {

// Appends a record of the log. position: the bytes of the file before `out`'s end, which this
// advances. Pure.
void append_wandb_record(std::string& out, uint64_t& position, std::string_view data);

class WandbTracker : public Tracker {
 public:
  std::string name() const override { return "wandb"; }
  void start(const TrackerRun& run) override;
  void log(const TrackedStep& entry) override;
  bool log_image(const TrackedImage& image, int64_t step, double time) override;
  bool log_table(const TrackedTable& table, int64_t step, double time) override;
  bool log_artifact(const TrackedArtifact& artifact, int64_t step, double time) override;
  void flush() override;
  void finish() override;
  std::string location() const override { return folder_; }

 private:
  // W&B keeps one row for each step, in ascending order: the values of a step wait for the next.
  void add(const std::string& name, const std::string& json, int64_t step, double time);
  void end_row();
  // The message `content` as that field of a Record.
  void write(uint32_t field, const std::string& content);
  void add_file(const std::string& path);

  AppendFile file_;
  std::string folder_;
  uint64_t position_ = 0;
  int64_t number_ = 0;  // of records
  double started_ = 0;
  int64_t step_ = -1;
  double step_time_ = 0;
  std::map<std::string, std::string> row_;      // of step_: JSON by name
  std::map<std::string, std::string> summary_;  // not written yet
  bool warned_ = false;
  bool ended_ = false;
};

}  // namespace coupler::track
