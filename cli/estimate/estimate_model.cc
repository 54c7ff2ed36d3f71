#include "cli/estimate/estimate_model.h"

#include <coupler/distributed_backend.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/mapped_file.h"
#include "base/units.h"
#include "cli/checkpoint/find_checkpoint.h"
#include "cli/estimate/estimate_report.h"
#include "cli/text/table.h"
#include "estimate/settings.h"
#include "estimate/transformer.h"
#include "weights/open_weights.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostConfigBytes = uint64_t{1} << 20;

std::string read_config_json(const std::string& path) {
  const auto file = MappedFile::open(path);
  if (file->size() > kMostConfigBytes) {
    throw Error(ErrorCode::kIo, fmt::format("'{}' is too large for a config.json", path),
                {.subject = path, .hint = "name a model's config.json"});
  }
  return {file->data(), file->data() + file->size()};
}

// Assumes training in fp32. The checkpoint's own dtypes only count for `stored`, its bytes on disk.
LoggedModel model_of_weights(const std::string& path, uint64_t& stored) {
  const bool folder = fs::is_directory(path) && (is_checkpoint(path) || holds_checkpoints(path));
  const WeightSource source = open_weights(folder ? find_checkpoint(path) : path, {});
  std::vector<LoggedParameter> parameters;
  stored = 0;
  for (const WeightTensor& tensor : source.tensors) {
    stored += tensor.bytes();
    const bool floating = safetensors::to_string(tensor.dtype).find('F') != std::string_view::npos;
    if (!floating) continue;  // buffers: positions, masks, counters
    LoggedParameter parameter{.name = tensor.name, .dtype = DB_F32};
    for (const int64_t size : tensor.shape) parameter.sizes.push_back(static_cast<uint64_t>(size));
    parameters.push_back(std::move(parameter));
  }
  if (parameters.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' has no floating-point tensors", path), {.subject = path});
  }
  return model_of_parameters(path, std::move(parameters));
}

struct Layer {
  std::string name;
  uint64_t elements = 0;
};

// The largest of the repeated modules; without these, of all modules with parameters of their own.
Layer largest_layer(const LoggedModel& model) {
  const std::string pattern = repeated_modules(model);
  const std::string stem = pattern.empty() ? "" : pattern.substr(0, pattern.size() - 1);
  std::vector<Layer> layers(model.modules.size());
  for (size_t m = 0; m < layers.size(); ++m) layers[m].name = model.modules[m].name;
  for (const LoggedParameter& p : model.parameters) {
    size_t module = p.module;
    if (!pattern.empty() && p.name.rfind(stem, 0) == 0) {
      const std::string layer = p.name.substr(0, p.name.find('.', stem.size()));
      module = static_cast<size_t>(
          std::find_if(model.modules.begin(), model.modules.end(),
                       [&](const LoggedModule& known) { return known.name == layer; }) -
          model.modules.begin());
    }
    if (pattern.empty() || p.name.rfind(stem, 0) == 0) layers.at(module).elements += p.numel();
  }
  return *std::max_element(layers.begin(), layers.end(),
                           [](const Layer& a, const Layer& b) { return a.elements < b.elements; });
}

}  // namespace

std::string estimate_model(const EstimateWords& words, const Config& config, uint64_t limit) {
  const bool is_config = fs::path(words.path).extension() == ".json" &&
                         words.path.find(".index.json") == std::string::npos;
  uint64_t stored = 0;
  StepLog log{.mixed_precision = "no", .models = {}, .optimizer = "AdamW", .optimizer_factor = 2};
  log.models.push_back(is_config ? transformer_of(read_config_json(words.path), words.path)
                                 : model_of_weights(words.path, stored));
  const LoggedModel& model = log.models[0];
  uint64_t elements = 0;
  for (const LoggedParameter& p : model.parameters) elements += p.numel();
  const Layer largest = largest_layer(model);
  const int world = static_cast<int>(words.world > 0 ? words.world : config.launch.processes);
  std::vector<EstimateRow> rows;
  for (const Setting& setting : known_settings(config.backend, words.disk)) {
    rows.push_back({.setting = setting.name,
                    .precision = "no",
                    .checkpointing = {},
                    .world = world,
                    .activations_counted = false,
                    .memory = estimate_memory(log, apply(setting, config.backend), world,
                                              config.communication)});
  }
  struct Type {
    const char* name;
    uint64_t bits;
  };
  constexpr Type kTypes[] = {{"float32", 32}, {"bfloat16, float16", 16}, {"int8", 8}, {"int4", 4}};
  if (words.json) {
    auto result = nlohmann::json::parse(estimate_json(rows, limit));
    result["parameters"] = elements;
    result["stored_bytes"] = stored;
    result["largest_layer"] = {{"name", largest.name}, {"parameters", largest.elements}};
    for (const Type& type : kTypes) {
      result["inference_bytes"][type.name] = elements * type.bits / 8;
    }
    return result.dump(2) + "\n";
  }
  std::string text =
      fmt::format("{}: {} parameters{}; the largest layer, {}, has {}\n\n", model.name, elements,
                  stored > 0 ? fmt::format(", {} as stored", format_byte_size(stored)) : "",
                  largest.name, largest.elements);
  std::vector<std::vector<std::string>> table = {{"for inference in", "model", "largest layer"}};
  for (const Type& type : kTypes) {
    table.push_back({type.name, format_byte_size(elements * type.bits / 8),
                     format_byte_size(largest.elements * type.bits / 8)});
  }
  return text + format_table(table) +
         "\nFor training with AdamW, with parameters, gradients and optimizer state in float32, "
         "also under\nmixed precision. The process itself and batches are not counted.\n\n" +
         estimate_text(rows, limit);
}

}  // namespace coupler::cli
