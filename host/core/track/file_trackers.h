// CsvTracker: metrics.csv, one line per value: step,time,name,value. An image's or a table's value
// is the path of its file, which is in media/; artifacts are copied to artifacts/. With a column
// per name, a new name during a run would require rewriting the file. Resumed runs append. Threads:
// see tracker.h.
#pragma once

#include <coupler/tracker.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"

namespace coupler::track {

// AppendFile: a file that grows by whole pieces. A partial write is undone and retried, so that a
// temporarily full disk leaves no torn line. Used by one thread at a time.
class AppendFile {
 public:
  // Creates the folder and the file if they are missing, or appends to the file. Throws Error(kIo)
  // naming what cannot be written.
  void open(const std::string& folder, const std::string& name);

  // The file's size when it was opened.
  size_t found() const { return found_; }
  const std::string& path() const { return path_; }

  // What the next flush writes; append to it.
  std::string& pending() { return pending_; }
  // Throws TrackerUnavailable if not all of it can be written; all of it then stays pending.
  void flush();
  // Syncs it to the disk on a best-effort basis: training does not need the file.
  void close();

 private:
  void restore_size() const;

  std::string path_;
  std::string pending_;
  UniqueFd file_;
  size_t found_ = 0;
  size_t size_ = 0;  // of the complete pieces
};

// Logged values as text. Pure functions, any thread.

// "0.5" (the shortest form that reads back the same), "nan", "inf", "-inf", "7", "true", a string
// as it is.
std::string text_of(const TrackValue& value);

// A number as a number, true as 1 and false as 0; none for a string.
std::optional<double> number_of(const TrackValue& value);

// The text with invalid UTF-8 replaced by U+FFFD, since most readers reject it.
std::string as_utf8(std::string_view text);

// Appends the value as JSON. NaN, Infinity and -Infinity, which JSON lacks, become these strings,
// as in Protobuf's JSON.
void append_json_value(std::string& out, const TrackValue& value);
void append_json_text(std::string& out, std::string_view text);
// {"name": value, …}; the last value of a repeated name.
void append_json_object(std::string& out, const TrackValues& values);

class CsvTracker : public Tracker {
 public:
  std::string name() const override { return "csv"; }
  void start(const TrackerRun& run) override;
  void log(const TrackedStep& entry) override;
  bool log_image(const TrackedImage& image, int64_t step, double time) override;
  bool log_table(const TrackedTable& table, int64_t step, double time) override;
  bool log_artifact(const TrackedArtifact& artifact, int64_t step, double time) override;
  void flush() override { file_.flush(); }
  void finish() override { file_.close(); }
  std::string location() const override { return file_.path(); }

 private:
  AppendFile file_;
  std::string folder_;
};

// JsonLinesTracker: metrics.jsonl, one JSON object per line. A run begins with
//   {"project": "p", "run": "r", "time": 1.5, "config": {…}}
// and each call of log is {"step": 3, "time": 1.5, "values": {…}}. An image is a value, too:
// {"image": "media/…", "caption": "…"}, and a table {"table": "media/…"}; the files are in media/.
// Artifacts are copied to artifacts/. Threads: see tracker.h.
class JsonLinesTracker : public Tracker {
 public:
  std::string name() const override { return "jsonl"; }
  void start(const TrackerRun& run) override;
  void log(const TrackedStep& entry) override;
  bool log_image(const TrackedImage& image, int64_t step, double time) override;
  bool log_table(const TrackedTable& table, int64_t step, double time) override;
  bool log_artifact(const TrackedArtifact& artifact, int64_t step, double time) override;
  void flush() override { file_.flush(); }
  void finish() override { file_.close(); }
  std::string location() const override { return file_.path(); }

 private:
  // A line with one value, which is JSON.
  void append(const std::string& name, const std::string& json, int64_t step, double time);

  AppendFile file_;
  std::string folder_;
};

}  // namespace coupler::track
