#include "cli/checkpoint/checkpoint_report.h"

#include <fmt/format.h>

#include <vector>

#include "base/mapped_file.h"
#include "base/units.h"
#include "cli/text/secrets.h"
#include "cli/text/table.h"

namespace coupler::cli {
namespace {

// Longer values matter only to programs, which read the manifest itself.
constexpr size_t kMaxValue = 100;

std::string value_text(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', true);  // ASCII, so cutting never splits a character
  if (text.size() > kMaxValue) text = text.substr(0, kMaxValue) + "…";
  return text;
}

}  // namespace

uint64_t total_bytes(const checkpoint::Manifest& manifest) {
  uint64_t bytes = 0;
  for (const auto& file : manifest.files) bytes += file.bytes;
  return bytes;
}

std::string size_text(const checkpoint::Manifest& manifest) {
  const size_t count = manifest.files.size();
  return fmt::format("{} in {} file{}", format_byte_size(total_bytes(manifest)), count,
                     count == 1 ? "" : "s");
}

std::string shape_text(const safetensors::TensorInfo& tensor) {
  std::string text = "[";
  for (const int64_t size : tensor.shape)
    text += fmt::format("{}{}", text.size() > 1 ? ", " : "", size);
  return text + "]";
}

std::string manifest_text(const checkpoint::Manifest& manifest, const std::string& path) {
  return format_table({{"Checkpoint", path},
                       {"Number", std::to_string(manifest.number)},
                       {"Steps", std::to_string(manifest.steps)},
                       {"Processes", std::to_string(manifest.world)},
                       {"Backend", printable(manifest.backend)},
                       {"Plan", printable(manifest.plan)},
                       {"Saved at", manifest.saved_at},
                       {"Coupler", printable(manifest.coupler_version)},
                       {"LibTorch", printable(manifest.libtorch_version)},
                       {"Size", size_text(manifest)}});
}

std::string state_text(const checkpoint::Manifest& manifest) {
  std::vector<std::vector<std::string>> rows = {{"STATE", "VALUE"}};
  for (const auto& [key, value] : manifest.state.items())
    rows.push_back({printable(key), value_text(value)});
  return rows.size() == 1 ? "" : format_table(rows);
}

std::string files_text(const checkpoint::Manifest& manifest) {
  std::vector<std::vector<std::string>> rows = {{"FILE", "SIZE", "SHA-256"}};
  for (const auto& file : manifest.files)
    rows.push_back({file.name, format_byte_size(file.bytes), to_hex(file.sha256)});
  return format_table(rows);
}

std::string tensors_text(const std::string& path) {
  const auto file = MappedFile::open(path);
  const auto header = safetensors::parse_header(file->data(), file->size(), path);
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "DTYPE", "SHAPE", "SIZE"}};
  for (const auto& tensor : header.tensors) {
    rows.push_back({printable(tensor.name), std::string(safetensors::to_string(tensor.dtype)),
                    shape_text(tensor), format_byte_size(tensor.end - tensor.begin)});
  }
  return format_table(rows);
}

namespace {

Json facts(const checkpoint::Manifest& manifest, const std::string& path) {
  return {{"path", path},
          {"number", manifest.number},
          {"valid", true},
          {"steps", manifest.steps},
          {"processes", manifest.world},
          {"backend", manifest.backend},
          {"plan", manifest.plan},
          {"saved_at", manifest.saved_at},
          {"coupler", manifest.coupler_version},
          {"libtorch", manifest.libtorch_version},
          {"bytes", total_bytes(manifest)}};
}

}  // namespace

Json checkpoints_json(const std::vector<checkpoint::Entry>& entries) {
  Json array = Json::array();
  for (const checkpoint::Entry& entry : entries) {
    if (entry.manifest) {
      array.push_back(facts(*entry.manifest, entry.path));
    } else {
      array.push_back({{"path", entry.path},
                       {"number", entry.number},
                       {"valid", false},
                       {"reason", entry.reason}});
    }
  }
  return array;
}

Json manifest_json(const checkpoint::Manifest& manifest, const std::string& path) {
  Json json = facts(manifest, path);
  json["state"] = manifest.state;
  json["files"] = Json::array();
  for (const auto& file : manifest.files) {
    json["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"sha256", to_hex(file.sha256)}});
  }
  return json;
}

Json differences_json(const std::string& path,
                      const std::vector<checkpoint::Difference>& differences) {
  Json json = {{"path", path}, {"as_saved", differences.empty()}, {"differences", Json::array()}};
  for (const checkpoint::Difference& difference : differences)
    json["differences"].push_back({{"file", difference.file}, {"reason", difference.reason}});
  return json;
}

Json tensors_json(const std::string& path) {
  const auto file = MappedFile::open(path);
  const auto header = safetensors::parse_header(file->data(), file->size(), path);
  Json array = Json::array();
  for (const auto& tensor : header.tensors) {
    array.push_back({{"name", tensor.name},
                     {"dtype", safetensors::to_string(tensor.dtype)},
                     {"shape", tensor.shape},
                     {"bytes", tensor.end - tensor.begin}});
  }
  return array;
}

}  // namespace coupler::cli
