// JsonLinesTracker: metrics.jsonl, one JSON object per line. A run begins with
//   {"project": "p", "run": "r", "time": 1.5, "config": {…}}
// and each call of log is {"step": 3, "time": 1.5, "values": {…}}. Threads: see tracker.h.
#pragma once

#include <coupler/tracker.h>

#include <string>

#include "track/append_file.h"

namespace coupler {

class JsonLinesTracker : public Tracker {
 public:
  std::string name() const override { return "jsonl"; }
  void start(const TrackerRun& run) override;
  void log(const TrackedStep& entry) override;
  void flush() override { file_.flush(); }
  void finish() override { file_.close(); }
  std::string location() const override { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace coupler
