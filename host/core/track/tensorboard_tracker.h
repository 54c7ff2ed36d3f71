// TensorBoardTracker: an event file that TensorBoard reads, a new one for each run. Threads: see
// tracker.h.
#pragma once

#include <coupler/tracker.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "track/file_trackers.h"

namespace coupler::track {

// The contents of TensorBoard's event files: records (length, its checksum, data, its checksum)
// that hold tensorflow.Event messages. Pure functions, any thread.

// CRC-32C, rotated by 15 bits and added to a constant, as records store it.
uint32_t masked_crc32c(std::string_view data);

void append_record(std::string& out, std::string_view data);

// Event messages. The first one of a file:
std::string version_event(double time);
// Each value as its own summary: numbers as single-precision scalars, strings as text.
std::string values_event(const TrackedStep& entry);
// The data for TensorBoard's HPARAMS tab.
std::string hparams_start_event(double time, const TrackerRun& run);
std::string hparams_end_event(double time);

class TensorBoardTracker : public Tracker {
 public:
  std::string name() const override { return "tensorboard"; }
  void start(const TrackerRun& run) override;
  void log(const TrackedStep& entry) override;
  void flush() override { file_.flush(); }
  void finish() override;
  std::string location() const override { return file_.path(); }

 private:
  AppendFile file_;
  bool ended_ = false;  // the last event is pending or written
};

}  // namespace coupler::track
