#include "track/csv_tracker.h"

#include <fmt/format.h>

#include <iterator>

#include "track/value_text.h"

namespace coupler {

void append_csv(std::string& out, std::string_view field) {
  if (field.find_first_of(",\"\r\n") == std::string_view::npos) {
    out += field;
    return;
  }
  out += '"';
  for (const char c : field) {
    if (c == '"') out += '"';
    out += c;
  }
  out += '"';
}

void CsvTracker::start(const TrackerRun& run) {
  file_.open(run.folder, "metrics.csv");
  std::string& out = file_.pending();
  if (file_.found() == 0) out += "step,time,name,value\n";
  for (const auto& [name, value] : run.config) {
    out += ",,";
    append_csv(out, "config/" + name);
    out += ',';
    append_csv(out, text_of(value));
    out += '\n';
  }
}

void CsvTracker::log(const TrackedStep& entry) {
  std::string& out = file_.pending();
  for (const auto& [name, value] : entry.values) {
    fmt::format_to(std::back_inserter(out), "{},{:.3f},", entry.step, entry.time);
    append_csv(out, name);
    out += ',';
    append_csv(out, text_of(value));
    out += '\n';
  }
}

}  // namespace coupler
