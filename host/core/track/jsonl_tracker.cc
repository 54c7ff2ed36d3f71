#include "track/jsonl_tracker.h"

#include <fmt/format.h>

#include <chrono>
#include <iterator>
#include <string_view>

#include "track/value_text.h"

namespace coupler {

void JsonLinesTracker::start(const TrackerRun& run) {
  file_.open(run.folder, "metrics.jsonl");
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string& out = file_.pending();
  out += "{\"project\": ";
  append_json_text(out, run.project);
  out += ", \"run\": ";
  append_json_text(out, run.run_name);
  fmt::format_to(std::back_inserter(out),
                 ", \"time\": {:.3f}, \"config\": ", std::chrono::duration<double>(now).count());
  append_json_object(out, run.config);
  out += "}\n";
}

void JsonLinesTracker::log(const TrackedStep& entry) {
  std::string& out = file_.pending();
  fmt::format_to(std::back_inserter(out),
                 "{{\"step\": {}, \"time\": {:.3f}, \"values\": ", entry.step, entry.time);
  append_json_object(out, entry.values);
  out += "}\n";
}

}  // namespace coupler
