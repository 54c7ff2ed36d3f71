#include "dispatch/packed_file.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/durable_file.h"
#include "base/log.h"
#include "base/strict_json.h"
#include "formats/safetensors_writer.h"
#include "quantize/packed_weight.h"
#include "weights/safetensors_weights.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Version of the packed bytes: changing it invalidates files of older versions.
constexpr int kFormat = 1;

struct Paths {
  Paths(const std::string& folder, const std::string& fingerprint) {
    const std::string name =
        fingerprint.empty()
            ? "quantized"
            : fmt::format("quantized-{:016x}", XXH3_64bits(fingerprint.data(), fingerprint.size()));
    weights = (fs::path(folder) / (name + ".safetensors")).string();
    index = (fs::path(folder) / (name + ".json")).string();
  }
  std::string weights, index;
};

// One line of the fingerprint; empty if the weight is not in a file.
std::string line_of(const PlacedTensor& weight) {
  const WeightTensor* const from = weight.value.weight;
  if (from == nullptr || from->place.file == nullptr) return "";
  struct stat status {};
  if (::stat(from->place.file->path().c_str(), &status) != 0) return "";
  const PackedLayout& layout = weight.packed->layout();
  return fmt::format("{} bits {} group {} of {}x{}{} from {} {} {} at {} size {} time {}.{}\n",
                     weight.name, layout.bits, layout.group, layout.rows, layout.columns,
                     weight.packed->transposed() ? " turned" : "",
                     fs::absolute(from->place.file->path()).string(),
                     safetensors::to_string(from->dtype), from->name, from->place.begin,
                     status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

bool fits(const WeightSource& source, const std::vector<const PlacedTensor*>& weights) {
  return source.tensors.size() == weights.size() &&
         std::all_of(weights.begin(), weights.end(), [&](const PlacedTensor* weight) {
           return std::any_of(
               source.tensors.begin(), source.tensors.end(), [&](const WeightTensor& stored) {
                 return stored.name == weight->name && stored.dtype == safetensors::DType::kU8 &&
                        stored.bytes() == weight->packed->bytes();
               });
         });
}

std::map<std::string, QuantizedLayer> layers_of(const json& index) {
  std::map<std::string, QuantizedLayer> layers;
  for (const auto& [name, errors] : index.at("errors").items()) {
    QuantizedLayer layer{.name = name};
    layer.relative_error = errors.at(0).get<double>();
    layer.max_error = errors.at(1).get<double>();
    layers.emplace(name, std::move(layer));
  }
  return layers;
}

}  // namespace

std::string fingerprint_of(const std::vector<const PlacedTensor*>& weights) {
  std::string text = fmt::format("format {}\n", kFormat);
  for (const PlacedTensor* const weight : weights) {
    const std::string line = line_of(*weight);
    if (line.empty()) return "";
    text += line;
  }
  return text;
}

std::optional<PackedFile> open_packed_file(const std::string& folder,
                                           const std::string& fingerprint,
                                           const std::vector<const PlacedTensor*>& weights) {
  const Paths paths(folder, fingerprint);
  std::error_code ignored;
  if (fingerprint.empty() || !fs::is_regular_file(paths.index, ignored)) return std::nullopt;
  std::string problem = "does not contain the weights that its name implies";
  try {
    const auto text = MappedFile::open(paths.index);
    const json index = checkpoint::parse_strict_json(
        {reinterpret_cast<const char*>(text->data()), text->size()}, 4);
    PackedFile file{std::make_shared<WeightSource>(open_safetensors(paths.weights)),
                    layers_of(index)};
    if (index.at("made_from").get<std::string>() == fingerprint && fits(*file.source, weights) &&
        file.layers.size() == weights.size())
      return file;
  } catch (const Error& error) {
    problem = error.what();
  } catch (const json::exception& error) {
    problem = error.what();
  } catch (const checkpoint::JsonProblem& error) {
    problem = error.rule;
  }
  log(LogLevel::kWarning, "quantize",
      fmt::format("{} cannot be used and is written again: {}", paths.index, problem));
  return std::nullopt;
}

PackedFile write_packed_file(const std::string& folder, const std::string& fingerprint,
                             const std::vector<const PlacedTensor*>& weights, const PackOne& pack) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) throw_io("create", folder, failed.value());
  const Paths paths(folder, fingerprint);
  std::map<std::string, const PlacedTensor*> by_name;
  std::vector<safetensors::TensorEntry> entries;
  for (const PlacedTensor* const weight : weights) {
    by_name.emplace(weight->name, weight);
    entries.push_back(
        {weight->name, safetensors::DType::kU8, {static_cast<int64_t>(weight->packed->bytes())}});
  }
  PackedFile file;
  json errors = json::object();
  // One per process, so that several may write the same file.
  const std::string part = fmt::format("{}.{}.part", paths.weights, ::getpid());
  fs::remove(part, failed);
  {
    safetensors::Writer writer(part, std::move(entries));
    for (const safetensors::TensorInfo& info : writer.tensors()) {
      QuantizedLayer layer{.name = info.name};
      const at::Tensor bytes = pack(*by_name.at(info.name), layer);
      writer.write(info.name, bytes.const_data_ptr(), bytes.nbytes());
      errors[info.name] = {layer.relative_error, layer.max_error};
      file.layers.emplace(info.name, std::move(layer));
    }
    writer.finish();
  }
  rename_durably(part, paths.weights);
  if (!fingerprint.empty()) {
    const json index = {{"made_from", fingerprint}, {"errors", std::move(errors)}};
    replace_file(paths.index, index.dump(1) + "\n");
  }
  file.source = std::make_shared<WeightSource>(open_safetensors(paths.weights));
  return file;
}

}  // namespace coupler
