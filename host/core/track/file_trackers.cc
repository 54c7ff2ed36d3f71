#include "track/file_trackers.h"

#include <coupler/tracker.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "base/text.h"
#include "base/units.h"
#include "track/media.h"

namespace coupler::track {
namespace {

std::string reason(int number) { return std::generic_category().message(number); }

[[noreturn]] void throw_not_writable(const std::string& path, int number) {
  throw Error(ErrorCode::kIo, fmt::format("{} cannot be written: {}", path, reason(number)),
              {.subject = path,
               .hint = "set training.logging_dir or training.project_dir to a writable folder"});
}

}  // namespace

void AppendFile::open(const std::string& folder, const std::string& name) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_not_writable(folder, error.value());
  path_ = (std::filesystem::path(folder) / name).string();
  file_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  struct stat status {};
  if (!file_ || ::fstat(file_.get(), &status) != 0) throw_not_writable(path_, errno);
  found_ = static_cast<size_t>(status.st_size);
  size_ = found_;
  // A process killed in the middle of a write leaves half a line.
  char last = '\n';
  if (found_ > 0 && ::pread(file_.get(), &last, 1, status.st_size - 1) == 1 && last != '\n')
    pending_ += '\n';
}

void AppendFile::flush() {
  size_t done = 0;
  while (done < pending_.size()) {
    const ssize_t written = ::write(file_.get(), pending_.data() + done, pending_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int number = written < 0 ? errno : ENOSPC;
      if (done > 0) restore_size();
      throw TrackerUnavailable(
          fmt::format("{} cannot be written: {}", path_, reason(number)),
          {.subject = path_,
           .hint = number == ENOSPC || number == EDQUOT ? "free some space on its disk" : ""});
    }
    done += static_cast<size_t>(written);
  }
  size_ += done;
  pending_.clear();
}

void AppendFile::restore_size() const {
  // If this fails too, the next attempt follows half a piece; nothing better can be done.
  if (::ftruncate(file_.get(), static_cast<off_t>(size_)) != 0) return;
}

void AppendFile::close() {
  if (!file_) return;
  flush();
  ::fsync(file_.get());
  file_.reset();
}

namespace {

// As JSON, with invalid UTF-8 replaced by U+FFFD.
std::string quoted(std::string_view text) {
  if (const auto valid = json_string(text)) return *valid;
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/false,
                                   nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string text_of(const TrackValue& value) {
  if (const auto* number = std::get_if<double>(&value)) {
    if (std::isnan(*number)) return "nan";
    return fmt::format("{}", *number);
  }
  if (const auto* number = std::get_if<int64_t>(&value)) return fmt::format("{}", *number);
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  return std::get<std::string>(value);
}

std::optional<double> number_of(const TrackValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* number = std::get_if<int64_t>(&value)) return static_cast<double>(*number);
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? 1.0 : 0.0;
  return std::nullopt;
}

std::string as_utf8(std::string_view text) {
  if (valid_utf8(text)) return std::string(text);
  return nlohmann::json::parse(quoted(text)).get<std::string>();
}

void append_json_value(std::string& out, const TrackValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return append_json_text(out, *text);
  const auto* number = std::get_if<double>(&value);
  if (number != nullptr && !std::isfinite(*number)) {
    out += std::isnan(*number) ? "\"NaN\"" : *number > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  } else if (number != nullptr) {
    fmt::format_to(std::back_inserter(out), "{}", *number);
  } else {
    out += text_of(value);
  }
}

void append_json_text(std::string& out, std::string_view text) { out += quoted(text); }

void append_json_object(std::string& out, const TrackValues& values) {
  out += '{';
  bool first = true;
  for (auto entry = values.begin(); entry != values.end(); ++entry) {
    const bool repeats = std::any_of(std::next(entry), values.end(), [&](const auto& later) {
      return later.first == entry->first;
    });
    if (repeats) continue;
    if (!first) out += ", ";
    first = false;
    append_json_text(out, entry->first);
    out += ": ";
    append_json_value(out, entry->second);
  }
  out += '}';
}

namespace {

// Appends a field as in RFC 4180: quoted if it contains a comma, a quote or a line break.
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

}  // namespace

namespace {

// Writes the file in media/, and returns its path from the project's folder.
std::string image_path(const std::string& folder, const TrackedImage& image, int64_t step) {
  const std::string name = media_name(image.name, step, image.format);
  write_media((std::filesystem::path(folder) / "media").string(), name, image.bytes);
  return "media/" + name;
}

std::string table_path(const std::string& folder, const TrackedTable& table, int64_t step) {
  const std::string name = media_name(table.name, step, "json");
  write_media((std::filesystem::path(folder) / "media").string(), name, table_json(table));
  return "media/" + name;
}

std::string artifact_folder(const std::string& folder) {
  return (std::filesystem::path(folder) / "artifacts").string();
}

}  // namespace

void CsvTracker::start(const TrackerRun& run) {
  check_options(run, name(), {});
  folder_ = run.folder;
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

bool CsvTracker::log_image(const TrackedImage& image, int64_t step, double time) {
  log({{{image.name, image_path(folder_, image, step)}}, step, time});
  return true;
}

bool CsvTracker::log_table(const TrackedTable& table, int64_t step, double time) {
  log({{{table.name, table_path(folder_, table, step)}}, step, time});
  return true;
}

bool CsvTracker::log_artifact(const TrackedArtifact& artifact, int64_t /*step*/, double /*time*/) {
  copy_artifact(artifact, artifact_folder(folder_));
  return true;
}

void JsonLinesTracker::start(const TrackerRun& run) {
  check_options(run, name(), {});
  folder_ = run.folder;
  file_.open(run.folder, "metrics.jsonl");
  std::string& out = file_.pending();
  out += "{\"project\": ";
  append_json_text(out, run.project);
  out += ", \"run\": ";
  append_json_text(out, run.run_name);
  fmt::format_to(std::back_inserter(out),
                 ", \"time\": {:.3f}, \"config\": ", seconds_since_epoch());
  append_json_object(out, run.config);
  out += "}\n";
}

void JsonLinesTracker::append(const std::string& name, const std::string& json, int64_t step,
                              double time) {
  std::string& out = file_.pending();
  fmt::format_to(std::back_inserter(out), "{{\"step\": {}, \"time\": {:.3f}, \"values\": {{", step,
                 time);
  append_json_text(out, name);
  out += ": " + json + "}}\n";
}

bool JsonLinesTracker::log_image(const TrackedImage& image, int64_t step, double time) {
  std::string json = fmt::format("{{\"image\": \"{}\"", image_path(folder_, image, step));
  if (!image.caption.empty()) {
    json += ", \"caption\": ";
    append_json_text(json, image.caption);
  }
  append(image.name, json + "}", step, time);
  return true;
}

bool JsonLinesTracker::log_table(const TrackedTable& table, int64_t step, double time) {
  append(table.name, fmt::format("{{\"table\": \"{}\"}}", table_path(folder_, table, step)), step,
         time);
  return true;
}

bool JsonLinesTracker::log_artifact(const TrackedArtifact& artifact, int64_t /*step*/,
                                    double /*time*/) {
  copy_artifact(artifact, artifact_folder(folder_));
  return true;
}

void JsonLinesTracker::log(const TrackedStep& entry) {
  std::string& out = file_.pending();
  fmt::format_to(std::back_inserter(out),
                 "{{\"step\": {}, \"time\": {:.3f}, \"values\": ", entry.step, entry.time);
  append_json_object(out, entry.values);
  out += "}\n";
}

}  // namespace coupler::track
