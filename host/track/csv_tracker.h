// CsvTracker: metrics.csv, a line a value: step,time,name,value. Names may come and go during a
// run, which a column each would not allow without writing the file anew, and runs that go on
// append. Threads: see tracker.h.
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

// A field as RFC 4180 has it: in quotes where it holds a comma, a quote or a line's end.
void append_csv(std::string& out, std::string_view field);

}  // namespace coupler
