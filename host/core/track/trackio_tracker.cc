#include "track/trackio_tracker.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/sha256.h"
#include "base/text.h"
#include "base/units.h"
#include "track/file_trackers.h"
#include "track/media.h"

namespace coupler::track {
namespace {

namespace fs = std::filesystem;

// A random UUID without dashes.
std::string new_uuid() {
  Bytes32 bytes = random_bytes32();
  bytes[6] = static_cast<uint8_t>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<uint8_t>((bytes[8] & 0x3f) | 0x80);
  return to_hex(bytes).substr(0, 32);
}

// Trackio adds keys of its own to rows, and to the configuration those that begin with "_".
std::string metric_name(const std::string& name) {
  constexpr std::array kReserved = {"project", "run", "timestamp", "step", "time", "metrics"};
  const bool reserved = std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end();
  return reserved || name.starts_with("__") ? "__" + name : name;
}

std::string config_json(const TrackerRun& run, const std::string& group) {
  for (const auto& [name, value] : run.config) {
    if (!name.starts_with('_')) continue;
    fail_argument(
        fmt::format("the tracker 'trackio' cannot hold the hyperparameter '{}'", for_message(name)),
        name, "rename it: names that begin with _ are Trackio's own");
  }
  std::string json;
  append_json_object(json, run.config);
  json.pop_back();
  if (json.size() > 1) json += ", ";
  fmt::format_to(std::back_inserter(json), R"("_Username": null, "_Created": "{}", "_Group": )",
                 trackio_time(seconds_since_epoch()));
  if (group.empty()) return json + "null}";
  append_json_text(json, group);
  return json + "}";
}

// The run's name is a folder's.
void check_run_name(const std::string& name) {
  const fs::path path(name);
  const bool inside = name.find('\0') == std::string::npos && path.is_relative() &&
                      std::none_of(path.begin(), path.end(), [](const fs::path& part) {
                        return part.empty() || part == "." || part == "..";
                      });
  if (inside) return;
  fail_argument(
      fmt::format("the tracker 'trackio' cannot use the run name '{}'", for_message(name)), "name",
      "use a name that is valid for a folder in another one");
}

// A project that cannot be written now can be when the user has acted: values wait until then.
void retryable(const std::function<void()>& action) {
  try {
    action();
  } catch (const TrackerUnavailable&) {
    throw;
  } catch (const Error& error) {
    throw TrackerUnavailable(without_hint(error.what()), error.detail());
  }
}

void warn_of_servers(const TrackioFolder& folder) {
  for (const char* const variable : {"TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"}) {
    if (environment_value(variable).empty()) continue;
    coupler::log(LogLevel::kWarning, "track",
                 fmt::format("tracker 'trackio': {} is set, but the run is only written to {}; "
                             "`trackio sync --project '{}'` uploads it to a Space",
                             variable, folder.database(), folder.project()));
  }
}

}  // namespace

void TrackioTracker::start(const TrackerRun& run) {
  check_options(run, name(), {"project", "name", "group", "resume"});
  resume_ = option_of(run, "resume");
  if (resume_.empty()) resume_ = "never";
  if (resume_ != "never" && resume_ != "allow" && resume_ != "must") {
    fail_argument(
        fmt::format("init_kwargs: resume of the tracker 'trackio' is '{}'", for_message(resume_)),
        "resume", "set it to never, allow or must");
  }
  const std::string project = option_of(run, "project");
  folder_.emplace(as_utf8(project.empty() ? run.project : project));
  run_.name = as_utf8(option_of(run, "name"));
  if (run_.name.empty()) run_.name = as_utf8(run.run_name);
  if (run_.name.empty() && resume_ == "must") {
    fail_argument("the tracker 'trackio' is to resume a run, but the run has no name", "resume",
                  "set TrackerOptions::run_name, or name in init_kwargs");
  }
  check_run_name(run_.name.empty() ? "run" : run_.name);
  config_ = config_json(run, option_of(run, "group"));
  writer_ = new_uuid();
  warn_of_servers(*folder_);
  try {
    open();
  } catch (const TrackerUnavailable& error) {
    // Busy, or the disk is full: connect() tries again, and training starts meanwhile.
    coupler::log(LogLevel::kInfo, "track", error.what());
  }
}

void TrackioTracker::open() {
  std::string found;
  const bool resumes = resume_ != "never" && !run_.name.empty();
  if (folder_->uses_inbox()) {
    folder_->create();
    std::error_code unknown;
    if (resumes && fs::exists(folder_->database(), unknown)) {
      found = TrackioDatabase(*folder_).latest_run(run_.name);
    }
  } else {
    TrackioDatabase database(*folder_);
    if (resumes) found = database.latest_run(run_.name);
  }
  if (resume_ == "must" && found.empty()) {
    fail_argument(fmt::format("{} has no run '{}'", folder_->database(), for_message(run_.name)),
                  "resume", "name a run that `trackio list runs` shows, or set resume to allow");
  }
  run_.id = found.empty() ? new_uuid() : found;
  if (run_.name.empty()) run_.name = "run-" + run_.id.substr(0, 8);
}

void TrackioTracker::connect() {
  if (run_.id.empty()) open();
}

void TrackioTracker::add_row(std::string metrics, int64_t step, double time) {
  pending_.push_back({new_uuid(), step, trackio_time(time), std::move(metrics)});
}

void TrackioTracker::log(const TrackedStep& entry) {
  TrackValues values = entry.values;
  for (auto& value : values) value.first = metric_name(value.first);
  std::string metrics;
  append_json_object(metrics, values);
  add_row(std::move(metrics), entry.step, entry.time);
}

bool TrackioTracker::log_image(const TrackedImage& image, int64_t step, double time) {
  const std::string file = new_uuid() + "." + image.format;
  write_media(folder_->media(run_.name, step), file, image.bytes, kOwnTrackioDir);
  std::string metrics = "{";
  append_json_text(metrics, metric_name(image.name));
  metrics += R"(: {"_type": "trackio.image", "file_path": )";
  append_json_text(metrics, folder_->media_inside(run_.name, step) + "/" + file);
  metrics += R"(, "caption": )";
  if (image.caption.empty()) {
    metrics += "null";
  } else {
    append_json_text(metrics, image.caption);
  }
  add_row(metrics + "}}", step, time);
  return true;
}

bool TrackioTracker::log_table(const TrackedTable& table, int64_t step, double time) {
  std::string metrics = "{";
  append_json_text(metrics, metric_name(table.name));
  metrics += R"(: {"_type": "trackio.table", "_value": [)";
  for (size_t r = 0; r < table.rows.size(); ++r) {
    TrackValues row;
    for (size_t i = 0; i < table.columns.size(); ++i) {
      row.emplace_back(table.columns[i], table.rows[r][i]);
    }
    if (r > 0) metrics += ", ";
    append_json_object(metrics, row);
  }
  add_row(metrics + "]}}", step, time);
  return true;
}

bool TrackioTracker::log_artifact(const TrackedArtifact& artifact, int64_t /*step*/, double time) {
  if (folder_->uses_inbox()) return false;
  std::string name = artifact.name;
  std::replace_if(
      name.begin(), name.end(),
      [](char c) {
        return !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                 c == '.' || c == '-' || c == '_');
      },
      '_');
  const std::vector<TrackioBlob> blobs = folder_->store(artifact);
  retryable([&] { TrackioDatabase(*folder_).add_artifact(run_, name, blobs, trackio_time(time)); });
  return true;
}

// Trackio imports the files of the inbox in the order of their names, and then removes them. Each
// writer has a folder of its own there.
void TrackioTracker::write_fragment() {
  std::string lines;
  for (const TrackioRow& row : pending_) {
    lines += R"({"v": 1, "kind": "metric", "project": )";
    append_json_text(lines, folder_->project());
    lines += R"(, "run": )";
    append_json_text(lines, run_.name);
    const bool with_config = !config_written_ && &row == &pending_.front();
    fmt::format_to(
        std::back_inserter(lines),
        R"(, "run_id": "{}", "metrics": {}, "step": {}, "timestamp": "{}", "config": {}, )"
        R"("log_id": "{}"}})"
        "\n",
        run_.id, row.metrics, row.step, row.time, with_config ? config_ : "null", row.log_id);
  }
  write_media((fs::path(folder_->inbox()) / writer_).string(),
              fmt::format("{:08}.jsonl", fragments_), lines, kOwnTrackioDir);
  ++fragments_;
}

void TrackioTracker::flush() {
  if (pending_.empty()) return;
  retryable([&] {
    if (folder_->uses_inbox()) {
      write_fragment();
    } else {
      TrackioDatabase(*folder_).write(run_, pending_, config_, !config_written_);
    }
  });
  config_written_ = true;
  pending_.clear();
}

std::string TrackioTracker::location() const {
  return folder_->uses_inbox() ? folder_->inbox() : folder_->database();
}

}  // namespace coupler::track
