#include "big_model/quantize_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <coupler/big_model.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/durable_file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "big_model/host_value.h"
#include "formats/safetensors_writer.h"
#include "quantize/choose_layers.h"
#include "quantize/packed_weight.h"
#include "weights/open_weights.h"
#include "weights/weight_source.h"

namespace coupler::big_model {

// A file of packed weights in an offload folder: quantized once, and used in place by every later
// run with the same weights and options. Plain functions, one thread; several processes may write
// the same file, since each replaces it as a whole.
//
// quantized-HASH.safetensors contains each weight's packed bytes under its name;
// quantized-HASH.json, written last, contains their fingerprint and the errors. HASH is of the
// fingerprint: the options, and each weight's shape and source file with its size and modification
// time. A changed checkpoint gets its own files.

namespace {

struct PackedFile {
  std::shared_ptr<const weights::WeightSource> source;  // one tensor of bytes per weight
  std::map<std::string, QuantizedLayer> layers;
  bool reused = false;  // an earlier run wrote it
};

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
  const weights::WeightTensor* const from = weight.value.weight;
  if (from == nullptr || from->place.file == nullptr) return "";
  struct stat status {};
  if (::stat(from->place.file->path().c_str(), &status) != 0) return "";
  const quantization::PackedLayout& layout = weight.packed->layout();
  return fmt::format("{} bits {} group {} of {}x{}{} from {} {} {} at {} size {} time {}.{}\n",
                     weight.name, layout.bits, layout.group, layout.rows, layout.columns,
                     weight.packed->transposed() ? " turned" : "",
                     fs::absolute(from->place.file->path()).string(),
                     safetensors::to_string(from->dtype), from->name, from->place.begin,
                     status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

// Null if the source has no tensor of that name.
const weights::WeightTensor* tensor_named(const weights::WeightSource& source,
                                          const std::string& name) {
  const auto found =
      std::find_if(source.tensors.begin(), source.tensors.end(),
                   [&](const weights::WeightTensor& stored) { return stored.name == name; });
  return found == source.tensors.end() ? nullptr : &*found;
}

bool matches_source(const weights::WeightSource& source,
                    const std::vector<const PlacedTensor*>& weights) {
  return source.tensors.size() == weights.size() &&
         std::all_of(weights.begin(), weights.end(), [&](const PlacedTensor* weight) {
           const weights::WeightTensor* const stored = tensor_named(source, weight->name);
           return stored != nullptr && stored->dtype == safetensors::DType::kU8 &&
                  stored->bytes() == weight->packed->bytes();
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

// Everything that packing these weights depends on; empty if one of them is not in a file, so that
// it could not be recognized later.
std::string fingerprint_of(const std::vector<const PlacedTensor*>& weights) {
  std::string text = fmt::format("format {}\n", kFormat);
  for (const PlacedTensor* const weight : weights) {
    const std::string line = line_of(*weight);
    if (line.empty()) return "";
    text += line;
  }
  return text;
}

// The file of that fingerprint; nullopt if it does not exist or is damaged, which is logged.
std::optional<PackedFile> open_packed_file(const std::string& folder,
                                           const std::string& fingerprint,
                                           const std::vector<const PlacedTensor*>& weights) {
  const Paths paths(folder, fingerprint);
  std::error_code ignored;
  if (fingerprint.empty() || !fs::is_regular_file(paths.index, ignored)) return std::nullopt;
  std::string problem = "does not contain the weights that its name implies";
  try {
    const auto text = MappedFile::open(paths.index);
    const json index =
        parse_strict_json({reinterpret_cast<const char*>(text->data()), text->size()}, 4);
    PackedFile file{
        std::make_shared<weights::WeightSource>(weights::open_safetensors(paths.weights)),
        layers_of(index), /*reused=*/true};
    if (index.at("made_from").get<std::string>() == fingerprint &&
        matches_source(*file.source, weights) && file.layers.size() == weights.size())
      return file;
  } catch (const Error& error) {
    problem = error.what();
  } catch (const json::exception& error) {
    problem = error.what();
  } catch (const JsonProblem& error) {
    problem = error.rule;
  }
  log(LogLevel::kWarning, "quantize",
      fmt::format("{} cannot be used and is written again: {}", paths.index, problem));
  return std::nullopt;
}

// The values to pack, on the CPU. If the checkpoint has another dtype, they are read as float, so
// that nothing is rounded twice.
at::Tensor values_of(const PlacedTensor& tensor) {
  if (tensor.value.tensor.defined()) return tensor.value.tensor.cpu();
  const at::Tensor values = at::empty(tensor.variable.sizes(), at::kFloat);
  copy_value(tensor.value, values);
  return values;
}

at::Tensor pack_one(const PlacedTensor& tensor, QuantizedLayer& layer) {
  auto [packed, error] =
      pack(tensor.packed->layout(), values_of(tensor), tensor.packed->transposed(), tensor.name);
  layer.relative_error = error.relative();
  layer.max_error = error.most;
  // The pages read from a mapped checkpoint are not needed again.
  const weights::FilePlace& place = tensor.value.place;
  if (place.file != nullptr) drop(*place.file, place.begin, tensor.value.tensor.nbytes());
  return packed;
}

// Packs one weight after the other, so that only one is in memory at a time, and returns when all
// are on disk. Throws Error(kIo), and what pack throws.
PackedFile write_packed_file(const std::string& folder, const std::string& fingerprint,
                             const std::vector<const PlacedTensor*>& weights) {
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
      const at::Tensor bytes = pack_one(*by_name.at(info.name), layer);
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
  file.source = std::make_shared<weights::WeightSource>(weights::open_safetensors(paths.weights));
  return file;
}

PackedFile file_of(const std::string& folder, const std::vector<const PlacedTensor*>& weights) {
  if (folder.empty())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the device map puts the quantized weight '{}' on the disk, but "
                            "offload_folder is not set",
                            weights[0]->name),
                {.subject = "offload_folder",
                 .hint = "name a folder on a local disk with room for the quantized weights; they "
                         "are written there once"});
  const std::string fingerprint = fingerprint_of(weights);
  if (auto file = open_packed_file(folder, fingerprint, weights)) return *std::move(file);
  return write_packed_file(folder, fingerprint, weights);
}

}  // namespace

void choose_packed(const strategy::Model& model, const QuantizeOptions& options,
                   std::vector<PlacedTensor>& tensors) {
  // Parameters come first, in the model's order.
  for (const quantization::ChosenLayer& layer : quantization::choose_layers(model, options)) {
    PlacedTensor& tensor = tensors.at(layer.parameter);
    tensor.packed =
        std::make_shared<quantization::PackedWeight>(layer.layout, layer.transposed, tensor.type);
  }
}

std::shared_ptr<const weights::WeightSource> pack_tensors(const QuantizeOptions& options,
                                                          const std::string& offload_folder,
                                                          std::vector<PlacedTensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<const PlacedTensor*> on_disk;
  for (const PlacedTensor& tensor : tensors) {
    if (tensor.packed != nullptr && tensor.stored_on.is_disk()) on_disk.push_back(&tensor);
  }
  PackedFile file;
  if (!on_disk.empty()) file = file_of(offload_folder, on_disk);
  QuantizationReport report{.bits = options.bits,
                            .group_size = options.bits == 4 ? options.group_size : 0,
                            .layers = {},
                            .reused = file.reused};
  for (PlacedTensor& tensor : tensors) {
    if (tensor.packed == nullptr) continue;
    QuantizedLayer layer{.name = tensor.name};
    if (tensor.stored_on.is_disk()) {
      layer = file.layers.at(tensor.name);
      tensor.value = host_value(*tensor_named(*file.source, tensor.name), at::kByte);
    } else {
      tensor.value = host_value(pack_one(tensor, layer));
    }
    layer.bytes_before =
        static_cast<uint64_t>(tensor.variable.numel()) * c10::elementSize(tensor.type);
    layer.bytes_after = tensor.packed->bytes();
    report.layers.push_back(std::move(layer));
  }
  for (const PlacedTensor& tensor : tensors) {
    if (!tensor.buffer) tensor.variable.set_requires_grad(false);
  }
  std::stable_sort(report.layers.begin(), report.layers.end(),
                   [](const QuantizedLayer& a, const QuantizedLayer& b) {
                     return a.relative_error > b.relative_error;
                   });
  if (options.report) options.report(report);
  return file.source;
}

}  // namespace coupler::big_model
