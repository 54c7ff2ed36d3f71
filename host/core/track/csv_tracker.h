// CsvTracker: metrics.csv, one line per value: step,time,name,value. With a column per name, a new
// name during a run would require rewriting the file. Resumed runs append. Threads: see tracker.h.
#pragma once

#include <coupler/tracker.h>

#include <string>
#include <string_view>

#include "track/append_file.h"

namespace coupler {

class CsvTracker : public Tracker {
 public:
  std::string name() const override { return "csv"; }
  void start(const TrackerRun& run) override;
  void log(const TrackedStep& entry) override;
  void flush() override { file_.flush(); }
  void finish() override { file_.close(); }
  std::string location() const override { return file_.path(); }

 private:
  AppendFile file_;
};

// Appends a field as in RFC 4180: quoted if it contains a comma, a quote or a line break.
void append_csv(std::string& out, std::string_view field);

}  // namespace coupler
