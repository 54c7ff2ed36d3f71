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

// The event message of logged values, each as its own summary: numbers as single-precision scalars,
// strings as text.
std::string values_event(const TrackedStep& entry);

class TensorBoardTracker : public Tracker {
 public:
  std::string name() const override { return "tensorboard"; }
  void start(const TrackerRun& run) override;
  void log(const TrackedStep& entry) override;
  bool log_image(const TrackedImage& image, int64_t step, double time) override;
  bool log_table(const TrackedTable& table, int64_t step, double time) override;
  void flush() override { file_.flush(); }
  void finish() override;
  std::string location() const override { return file_.path(); }

 private:
  AppendFile file_;
  bool ended_ = false;  // the last event is pending or written
};

}  // namespace coupler::track
