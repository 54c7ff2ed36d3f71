#include "track/tensorboard_tracker.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <boost/crc.hpp>
#include <cstring>
#include <protozero/pbf_writer.hpp>

#include "base/units.h"
#include "track/file_trackers.h"
#include "track/media.h"

namespace coupler::track {
namespace {

using protozero::pbf_writer;

// Field numbers of tensorflow/core/util/event.proto, framework/summary.proto,
// framework/tensor.proto and tensorboard/plugins/hparams/plugin_data.proto.
enum EventField : uint32_t { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
enum Summary : uint32_t { kValue = 1 };
enum Value : uint32_t { kTag = 1, kSimpleValue = 2, kImage = 4, kTensor = 8, kMetadata = 9 };
enum Image : uint32_t { kHeight = 1, kWidth = 2, kEncoded = 4 };
enum Metadata : uint32_t { kPluginData = 1 };
enum PluginData : uint32_t { kPluginName = 1, kContent = 2 };
enum Tensor : uint32_t { kDtype = 1, kShape = 2, kFloatValue = 5, kStringValue = 8 };
enum Shape : uint32_t { kDim = 2 };
enum Dim : uint32_t { kSize = 1 };
enum HParams : uint32_t { kSessionStart = 3, kSessionEnd = 4 };
enum SessionStart : uint32_t { kHyperparameters = 1, kGroupName = 4, kStartTime = 5 };
enum SessionEnd : uint32_t { kStatus = 1, kEndTime = 2 };
enum MapEntry : uint32_t { kKey = 1, kMapped = 2 };
enum AnyValue : uint32_t { kNumber = 2, kString = 3, kBool = 4 };

constexpr int32_t kDtFloat = 1;
constexpr int32_t kDtString = 7;
constexpr int32_t kStatusSuccess = 1;

void add_little_endian(std::string& out, uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(number >> (8 * i) & 0xff);
}

// A tensor with one dimension and one element.
std::string tensor_of(int32_t dtype, const std::string* text) {
  std::string dim;
  pbf_writer(dim).add_int64(kSize, 1);
  std::string shape;
  pbf_writer(shape).add_message(kDim, dim);
  std::string tensor;
  pbf_writer writer(tensor);
  writer.add_enum(kDtype, dtype);
  writer.add_message(kShape, shape);
  if (text != nullptr) {
    writer.add_bytes(kStringValue, *text);
  } else {
    writer.add_float(kFloatValue, 0);
  }
  return tensor;
}

std::string metadata_of(const std::string& plugin, const std::string& content) {
  std::string data;
  pbf_writer writer(data);
  writer.add_string(kPluginName, plugin);
  if (!content.empty()) writer.add_bytes(kContent, content);
  std::string metadata;
  pbf_writer(metadata).add_message(kPluginData, data);
  return metadata;
}

void add_text_value(std::string& summary, const std::string& tag, const std::string& text) {
  std::string value;
  pbf_writer writer(value);
  writer.add_string(kTag, tag);
  writer.add_message(kTensor, tensor_of(kDtString, &text));
  writer.add_message(kMetadata, metadata_of("text", ""));
  pbf_writer(summary).add_message(kValue, value);
}

std::string event_of(double time, int64_t step, const std::string& summary) {
  std::string event;
  pbf_writer writer(event);
  writer.add_double(kWallTime, time);
  writer.add_int64(kStep, step);
  writer.add_message(kSummary, summary);
  return event;
}

// The message HParamsPluginData as the content of a summary without a value.
std::string hparams_event(double time, const std::string& tag, HParams field,
                          const std::string& session) {
  std::string content;
  pbf_writer(content).add_message(field, session);
  std::string value;
  pbf_writer writer(value);
  writer.add_string(kTag, tag);
  writer.add_message(kTensor, tensor_of(kDtFloat, nullptr));
  writer.add_message(kMetadata, metadata_of("hparams", content));
  std::string summary;
  pbf_writer(summary).add_message(kValue, value);
  return event_of(time, 0, summary);
}

// google.protobuf.Value
std::string any_value(const TrackValue& value) {
  std::string any;
  pbf_writer writer(any);
  if (const auto* truth = std::get_if<bool>(&value)) {
    writer.add_bool(kBool, *truth);
  } else if (const auto number = number_of(value)) {
    writer.add_double(kNumber, *number);
  } else {
    writer.add_string(kString, as_utf8(std::get<std::string>(value)));
  }
  return any;
}

void append_record(std::string& out, std::string_view data) {
  std::string length;
  add_little_endian(length, data.size(), 8);
  out += length;
  add_little_endian(out, masked_crc32c(length), 4);
  out += data;
  add_little_endian(out, masked_crc32c(data), 4);
}

// The first event of a file.
std::string version_event(double time) {
  std::string event;
  pbf_writer writer(event);
  writer.add_double(kWallTime, time);
  writer.add_string(kFileVersion, "brain.Event:2");
  return event;
}

std::string hparams_start_event(double time, const TrackerRun& run) {
  std::string session;
  pbf_writer writer(session);
  for (const auto& [name, value] : run.config) {
    std::string entry;
    pbf_writer pair(entry);
    pair.add_string(kKey, as_utf8(name));
    pair.add_message(kMapped, any_value(value));
    writer.add_message(kHyperparameters, entry);
  }
  writer.add_string(kGroupName, as_utf8(run.run_name.empty() ? run.project : run.run_name));
  writer.add_double(kStartTime, time);
  return hparams_event(time, "_hparams_/session_start_info", kSessionStart, session);
}

std::string hparams_end_event(double time) {
  std::string session;
  pbf_writer writer(session);
  writer.add_enum(kStatus, kStatusSuccess);
  writer.add_double(kEndTime, time);
  return hparams_event(time, "_hparams_/session_end_info", kSessionEnd, session);
}

// TensorBoard reads files in the order of their names. No two runs use the same one.
std::string file_name(double now) {
  static std::atomic<int> count{0};
  std::array<char, 256> host = {};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {"localhost"};
  return fmt::format("events.out.tfevents.{:010}.{}.{}.{}", static_cast<int64_t>(now), host.data(),
                     ::getpid(), count++);
}

}  // namespace

uint32_t masked_crc32c(std::string_view data) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(data.data(), data.size());
  return std::rotr(static_cast<uint32_t>(crc.checksum()), 15) + 0xa282ead8U;
}

std::string values_event(const TrackedStep& entry) {
  std::string summary;
  for (const auto& [name, value] : entry.values) {
    const std::string tag = as_utf8(name);
    const auto number = number_of(value);
    if (!number) {
      add_text_value(summary, tag, as_utf8(std::get<std::string>(value)));
      continue;
    }
    std::string scalar;
    pbf_writer writer(scalar);
    writer.add_string(kTag, tag);
    writer.add_float(kSimpleValue, static_cast<float>(*number));
    pbf_writer(summary).add_message(kValue, scalar);
  }
  return event_of(entry.time, entry.step, summary);
}

void TensorBoardTracker::start(const TrackerRun& run) {
  check_options(run, name(), {});
  const double now = seconds_since_epoch();
  file_.open(run.folder, file_name(now));
  append_record(file_.pending(), version_event(now));
  if (!run.config.empty()) append_record(file_.pending(), hparams_start_event(now, run));
}

void TensorBoardTracker::log(const TrackedStep& entry) {
  append_record(file_.pending(), values_event(entry));
}

bool TensorBoardTracker::log_image(const TrackedImage& image, int64_t step, double time) {
  std::string picture;
  pbf_writer fields(picture);
  fields.add_int32(kHeight, static_cast<int32_t>(image.height));
  fields.add_int32(kWidth, static_cast<int32_t>(image.width));
  fields.add_bytes(kEncoded, image.bytes);
  std::string value;
  pbf_writer writer(value);
  writer.add_string(kTag, as_utf8(image.name));
  writer.add_message(kImage, picture);
  std::string summary;
  pbf_writer(summary).add_message(kValue, value);
  append_record(file_.pending(), event_of(time, step, summary));
  return true;
}

bool TensorBoardTracker::log_table(const TrackedTable& table, int64_t step, double time) {
  // A table in Markdown, which the TEXT tab shows as one.
  std::string text = "|";
  const auto add_cell = [&](const std::string& cell) {
    text += ' ';
    for (const char c : cell) text += c == '|' ? "\\|" : c == '\n' ? " " : std::string(1, c);
    text += " |";
  };
  for (const std::string& column : table.columns) add_cell(column);
  text += "\n|";
  for (size_t i = 0; i < table.columns.size(); ++i) text += " --- |";
  for (const auto& row : table.rows) {
    text += "\n|";
    for (const TrackValue& value : row) add_cell(text_of(value));
  }
  std::string summary;
  add_text_value(summary, as_utf8(table.name), as_utf8(text));
  append_record(file_.pending(), event_of(time, step, summary));
  return true;
}

void TensorBoardTracker::finish() {
  if (!ended_) append_record(file_.pending(), hparams_end_event(seconds_since_epoch()));
  ended_ = true;
  file_.close();
}

}  // namespace coupler::track
