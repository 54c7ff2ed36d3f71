#include "track/wandb_tracker.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/crc.hpp>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <protozero/pbf_writer.hpp>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/text.h"
#include "base/units.h"
#include "track/media.h"

namespace coupler::track {
namespace {

namespace fs = std::filesystem;
using protozero::pbf_writer;

enum class RecordField : uint32_t {
  kHistory = 2,
  kSummary = 3,
  kFiles = 6,
  kRun = 17,
  kExit = 18,
  kHeader = 21
};
enum class RunField : uint32_t {
  kId = 1,
  kEntity = 2,
  kProject = 3,
  kConfig = 4,
  kGroup = 6,
  kJobType = 7,
  kDisplayName = 8,
  kNotes = 9,
  kTags = 10,
  kHost = 13,
  kStartTime = 17
};
// Of Record, and of the messages of lists: ConfigRecord, HistoryRecord, SummaryRecord, FilesRecord.
constexpr uint32_t kRecordNumber = 1;
constexpr uint32_t kListItem = 1;
constexpr uint32_t kItemKey = 1;        // of ConfigItem
constexpr uint32_t kItemNestedKey = 2;  // of HistoryItem and SummaryItem: one part, taken literally
constexpr uint32_t kItemJson = 16;
constexpr uint32_t kHistoryStep = 2;
constexpr uint32_t kStepNumber = 1;
constexpr uint32_t kFilePath = 1;
constexpr uint32_t kExitRuntime = 2;
constexpr uint32_t kVersionInfo = 1;
constexpr uint32_t kProducer = 1;

constexpr size_t kBlock = 32768;
constexpr size_t kRecordHead = 7;  // CRC-32, length, kind
constexpr char kWhole = 1, kFirst = 2, kMiddle = 3, kLast = 4;

void add_number(std::string& out, uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(number >> (8 * i) & 0xff);
}

void add_fragment(std::string& out, uint64_t& position, char kind, std::string_view data) {
  boost::crc_32_type crc;
  crc.process_byte(static_cast<unsigned char>(kind));
  crc.process_bytes(data.data(), data.size());
  add_number(out, crc.checksum(), 4);
  add_number(out, data.size(), 2);
  out += kind;
  out += data;
  position += kRecordHead + data.size();
}

std::string item_of(uint32_t key_field, const std::string& key, const std::string& json) {
  std::string item;
  pbf_writer writer(item);
  writer.add_string(key_field, key);
  writer.add_string(kItemJson, json);
  return item;
}

std::string json_of(const TrackValue& value) {
  std::string json;
  append_json_value(json, value);
  return json;
}

std::string run_id() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::string id;
  for (const uint8_t byte : random_bytes32()) {
    if (id.size() < 8) id += kLetters[byte % kLetters.size()];
  }
  return id;
}

// The run's record, with its configuration.
std::string run_message(const TrackerRun& run, const std::string& id, double started) {
  std::string message;
  pbf_writer writer(message);
  const auto add = [&](RunField field, const std::string& text) {
    if (!text.empty()) writer.add_string(static_cast<uint32_t>(field), as_utf8(text));
  };
  add(RunField::kId, id);
  add(RunField::kEntity, option_of(run, "entity", "WANDB_ENTITY"));
  const std::string project = option_of(run, "project", "WANDB_PROJECT");
  add(RunField::kProject, project.empty() ? run.project : project);
  std::string config;
  for (const auto& [name, value] : run.config) {
    pbf_writer(config).add_message(kListItem, item_of(kItemKey, as_utf8(name), json_of(value)));
  }
  writer.add_message(static_cast<uint32_t>(RunField::kConfig), config);
  add(RunField::kGroup, option_of(run, "group", "WANDB_RUN_GROUP"));
  add(RunField::kJobType, option_of(run, "job_type", "WANDB_JOB_TYPE"));
  const std::string name = option_of(run, "name", "WANDB_NAME");
  add(RunField::kDisplayName, name.empty() ? run.run_name : name);
  add(RunField::kNotes, option_of(run, "notes", "WANDB_NOTES"));
  const std::string tags = option_of(run, "tags", "WANDB_TAGS");
  for (const std::string& tag : split(tags, ',')) add(RunField::kTags, tag);
  std::array<char, 256> host = {};
  if (::gethostname(host.data(), host.size() - 1) == 0) add(RunField::kHost, host.data());
  std::string time;
  pbf_writer stamp(time);
  stamp.add_int64(1, static_cast<int64_t>(started));
  stamp.add_int32(2, static_cast<int32_t>((started - std::floor(started)) * 1e9));
  writer.add_message(static_cast<uint32_t>(RunField::kStartTime), time);
  return message;
}

}  // namespace

void append_wandb_record(std::string& out, uint64_t& position, std::string_view data) {
  size_t room = kBlock - position % kBlock;
  if (room < kRecordHead) {
    out.append(room, '\0');
    position += room;
    room = kBlock;
  }
  if (data.size() + kRecordHead <= room) return add_fragment(out, position, kWhole, data);
  add_fragment(out, position, kFirst, data.substr(0, room - kRecordHead));
  data.remove_prefix(room - kRecordHead);
  while (data.size() > kBlock - kRecordHead) {
    add_fragment(out, position, kMiddle, data.substr(0, kBlock - kRecordHead));
    data.remove_prefix(kBlock - kRecordHead);
  }
  add_fragment(out, position, kLast, data);
}

void WandbTracker::write(uint32_t field, const std::string& content) {
  std::string record;
  pbf_writer writer(record);
  writer.add_int64(kRecordNumber, ++number_);
  writer.add_message(field, content);
  append_wandb_record(file_.pending(), position_, record);
}

void WandbTracker::start(const TrackerRun& run) {
  check_options(run, name(),
                {"entity", "project", "name", "group", "job_type", "notes", "tags", "id"});
  std::string id = option_of(run, "id", "WANDB_RUN_ID");
  const bool plain = std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
  if (!plain || id.size() > 64) {
    fail_argument(fmt::format("the W&B run's id is '{}'", for_message(id)), "id",
                  "use at most 64 letters, digits, - and _");
  }
  if (id.empty()) id = run_id();
  started_ = seconds_since_epoch();
  const std::time_t seconds = static_cast<std::time_t>(started_);
  folder_ = (fs::path(run.folder) / "wandb" /
             fmt::format("offline-run-{:%Y%m%d_%H%M%S}-{}", fmt::localtime(seconds), id))
                .string();
  file_.open(folder_, fmt::format("run-{}.wandb", id));
  if (file_.found() > 0) {
    fail_argument(fmt::format("{} already exists", file_.path()), "id",
                  "give each run an id of its own, or none");
  }
  std::error_code error;
  fs::create_directories(fs::path(folder_) / "files", error);
  file_.pending() += ":W&B";
  add_number(file_.pending(), 0xbee1, 2);
  file_.pending() += '\0';  // the log's version
  position_ = kRecordHead;
  std::string version, header;
  pbf_writer(version).add_string(kProducer, "coupler");
  pbf_writer(header).add_message(kVersionInfo, version);
  write(static_cast<uint32_t>(RecordField::kHeader), header);
  write(static_cast<uint32_t>(RecordField::kRun), run_message(run, id, started_));
}

void WandbTracker::add(const std::string& name, const std::string& json, int64_t step,
                       double time) {
  if (step < step_) {
    if (!std::exchange(warned_, true)) {
      coupler::log(LogLevel::kWarning, "track",
                   fmt::format("tracker 'wandb': '{}' of step {} is left out, since W&B's steps "
                               "ascend and step {} has been logged",
                               for_message(name), step, step_));
    }
    return;
  }
  if (step > step_) end_row();
  step_ = step;
  step_time_ = time;
  row_[as_utf8(name)] = json;
}

void WandbTracker::end_row() {
  if (row_.empty()) return;
  row_["_step"] = fmt::format("{}", step_);
  row_["_timestamp"] = fmt::format("{}", step_time_);
  row_["_runtime"] = fmt::format("{}", step_time_ - started_);
  std::string history;
  pbf_writer writer(history);
  for (const auto& [name, json] : row_) {
    writer.add_message(kListItem, item_of(kItemNestedKey, name, json));
    summary_[name] = json;
  }
  std::string step;
  pbf_writer(step).add_int64(kStepNumber, step_);
  writer.add_message(kHistoryStep, step);
  row_.clear();
  write(static_cast<uint32_t>(RecordField::kHistory), history);
}

void WandbTracker::add_file(const std::string& path) {
  std::string file, files;
  pbf_writer(file).add_string(kFilePath, path);
  pbf_writer(files).add_message(kListItem, file);
  write(static_cast<uint32_t>(RecordField::kFiles), files);
}

void WandbTracker::log(const TrackedStep& entry) {
  for (const auto& [name, value] : entry.values) add(name, json_of(value), entry.step, entry.time);
}

bool WandbTracker::log_image(const TrackedImage& image, int64_t step, double time) {
  const std::string path = "media/images/" + media_name(image.name, step, image.format);
  write_media((fs::path(folder_) / "files/media/images").string(),
              fs::path(path).filename().string(), image.bytes);
  std::string json =
      fmt::format("{{\"_type\": \"image-file\", \"path\": \"{}\", \"format\": \"{}\", \"size\": {}",
                  path, image.format, image.bytes.size());
  if (image.width > 0) {
    json += fmt::format(", \"width\": {}, \"height\": {}", image.width, image.height);
  }
  if (!image.caption.empty()) {
    json += ", \"caption\": ";
    append_json_text(json, image.caption);
  }
  add_file(path);
  add(image.name, json + "}", step, time);
  return true;
}

bool WandbTracker::log_table(const TrackedTable& table, int64_t step, double time) {
  const std::string text = table_json(table);
  const std::string path = "media/table/" + media_name(table.name, step, "table.json");
  write_media((fs::path(folder_) / "files/media/table").string(),
              fs::path(path).filename().string(), text);
  add_file(path);
  add(table.name,
      fmt::format("{{\"_type\": \"table-file\", \"path\": \"{}\", \"size\": {}, \"ncols\": {}, "
                  "\"nrows\": {}, \"sha256\": \"{}\"}}",
                  path, text.size(), table.columns.size(), table.rows.size(),
                  to_hex(Digest().update(text).finish())),
      step, time);
  return true;
}

bool WandbTracker::log_artifact(const TrackedArtifact& artifact, int64_t /*step*/,
                                double /*time*/) {
  const std::string folder = (fs::path(folder_) / "files/artifacts").string();
  for (const std::string& file : copy_artifact(artifact, folder)) add_file("artifacts/" + file);
  return true;
}

void WandbTracker::flush() {
  if (!summary_.empty()) {
    std::string summary;
    for (const auto& [name, json] : summary_) {
      pbf_writer(summary).add_message(kListItem, item_of(kItemNestedKey, name, json));
    }
    summary_.clear();
    write(static_cast<uint32_t>(RecordField::kSummary), summary);
  }
  file_.flush();
}

void WandbTracker::finish() {
  end_row();
  if (!std::exchange(ended_, true)) {
    flush();
    std::string exit;
    pbf_writer(exit).add_int32(kExitRuntime,
                               static_cast<int32_t>(seconds_since_epoch() - started_));
    write(static_cast<uint32_t>(RecordField::kExit), exit);
  }
  file_.close();
}

}  // namespace coupler::track
