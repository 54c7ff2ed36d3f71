// TensorBoardTracker: an event file that TensorBoard reads, a new one for each run. Threads: see
// tracker.h.
#pragma once

#include <coupler/tracker.h>

#include <string>

#include "track/append_file.h"

namespace coupler {

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

}  // namespace coupler
