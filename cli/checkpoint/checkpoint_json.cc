#include "cli/checkpoint/checkpoint_json.h"

#include "base/mapped_file.h"
#include "cli/checkpoint/checkpoint_words.h"

namespace coupler::cli {
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
