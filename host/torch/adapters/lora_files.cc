#include "adapters/lora_files.h"

#include <coupler/error.h>
#include <coupler/state_dict.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/durable_file.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "formats/safetensors_writer.h"
#include "tensors/safetensors.h"

namespace coupler::adapters {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightsFile = "adapter_model.safetensors";
// What PEFT's model puts before the base model's own names.
constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kSuffixA = ".lora_A.weight", kSuffixB = ".lora_B.weight";
constexpr int kConfigNesting = 16;

std::string path_in(const std::string& folder, const char* file) {
  return (fs::path(folder) / file).string();
}

[[noreturn]] void refuse_adapter(ErrorCode code, const std::string& path, const std::string& what,
                                 const std::string& hint) {
  throw Error(code, fmt::format("{}: {}", path, what), {.subject = path, .hint = hint});
}

// Reads keys of adapter_config.json.
class ConfigReader {
 public:
  ConfigReader(const json& keys, std::string path) : keys_(keys), path_(std::move(path)) {}

  // Null and missing are the same.
  const json* find(const char* key) const {
    const auto found = keys_.find(key);
    return found == keys_.end() || found->is_null() ? nullptr : &*found;
  }
  int64_t integer(const char* key, int64_t otherwise) const {
    const json* const value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number_integer() || *value < 1 || *value > (int64_t{1} << 32))
      refuse(key, "must be a whole number above 0");
    return value->get<int64_t>();
  }
  double number(const char* key, double otherwise) const {
    const json* const value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) refuse(key, "must be a number");
    return value->get<double>();
  }
  bool flag(const char* key) const {
    const json* const value = find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse(key, "must be true or false");
    return value->get<bool>();
  }
  std::string text(const char* key) const {
    const json* const value = find(key);
    if (value == nullptr) return "";
    if (!value->is_string()) refuse(key, "must be a string");
    return value->get<std::string>();
  }
  // A string becomes the pattern.
  std::vector<std::string> names(const char* key, std::string& pattern) const {
    std::vector<std::string> result;
    const json* const value = find(key);
    if (value == nullptr) return result;
    if (value->is_string()) {
      pattern = value->get<std::string>();
      return result;
    }
    if (!value->is_array()) refuse(key, "must be a string or a list of strings");
    for (const json& name : *value) {
      if (!name.is_string()) refuse(key, "must be a string or a list of strings");
      result.push_back(name.get<std::string>());
    }
    return result;
  }
  [[noreturn]] void refuse(const char* key, const char* rule) const {
    refuse_adapter(ErrorCode::kInvalidArgument, path_, fmt::format("'{}' {}", key, rule),
                   "use a file that PEFT or save_pretrained has written");
  }
  // The key has another value than the one with no effect.
  void refuse_unless_empty(const char* key) const {
    const json* const value = find(key);
    if (value == nullptr || *value == false || *value == 0) return;
    if ((value->is_array() || value->is_object() || value->is_string()) && value->empty()) return;
    if (value->is_string() && *value == "none") return;
    refuse_adapter(ErrorCode::kUnsupported, path_,
                   fmt::format("'{}' is set, which is not supported", key),
                   "train the adapter without it, or merge it in Python "
                   "(merge_and_unload) and load the merged model");
  }

 private:
  const json& keys_;
  const std::string path_;
};

// What changes the computation, or which tensors there are. Others concern only training or naming.
constexpr const char* kUnsupported[] = {"bias",
                                        "use_dora",
                                        "lora_bias",
                                        "modules_to_save",
                                        "alpha_pattern",
                                        "trainable_token_indices",
                                        "target_parameters",
                                        "layer_replication",
                                        "use_qalora",
                                        "use_bdlora",
                                        "alora_invocation_tokens",
                                        "arrow_config",
                                        "kasa_config",
                                        "velora_config",
                                        "monteclora_config",
                                        "megatron_config"};

json parse_config(const std::string& path) {
  const auto text = MappedFile::open(path);
  try {
    json keys = parse_strict_json({reinterpret_cast<const char*>(text->data()), text->size()},
                                  kConfigNesting);
    if (keys.is_object()) return keys;
    refuse_adapter(ErrorCode::kIo, path, "is not a JSON object", "write the adapter again");
  } catch (const JsonProblem& problem) {
    refuse_adapter(
        ErrorCode::kIo, path,
        problem.key.empty() ? problem.rule : fmt::format("'{}': {}", problem.key, problem.rule),
        "write the adapter again");
  }
}

AdapterConfig read_config(const std::string& path) {
  const json keys = parse_config(path);
  const ConfigReader reader(keys, path);
  if (lower(reader.text("peft_type")) != "lora") {
    refuse_adapter(ErrorCode::kUnsupported, path,
                   fmt::format("'peft_type' is '{}', and only LORA is supported",
                               for_message(reader.text("peft_type"))),
                   "use a LoRA adapter");
  }
  for (const char* const key : kUnsupported) reader.refuse_unless_empty(key);
  // These change the base's weights, too.
  if (const json* const init = reader.find("init_lora_weights"); init != nullptr) {
    const std::string kind = init->is_string() ? lower(init->get<std::string>()) : "";
    if (kind.starts_with("pissa") || kind.starts_with("olora") || kind.starts_with("corda") ||
        kind.starts_with("loftq") || kind.starts_with("lora_ga")) {
      refuse_adapter(ErrorCode::kUnsupported, path,
                     fmt::format("'init_lora_weights' is '{}', which changes the base model, too",
                                 for_message(kind)),
                     "save it in Python with path_initial_model_for_weight_conversion");
    }
  }
  AdapterConfig config;
  config.rank = reader.integer("r", config.rank);
  config.alpha = reader.number("lora_alpha", config.alpha);
  config.rslora = reader.flag("use_rslora");
  config.dropout = reader.number("lora_dropout", 0);
  if (!std::isfinite(config.alpha)) reader.refuse("lora_alpha", "must be finite");
  if (!(config.dropout >= 0 && config.dropout < 1))
    reader.refuse("lora_dropout", "must be at least 0 and below 1");
  config.transposed = reader.flag("fan_in_fan_out");
  std::string excluded;  // a pattern, which the tensors in the file make unnecessary
  config.target_modules = reader.names("target_modules", config.target_pattern);
  config.exclude_modules = reader.names("exclude_modules", excluded);
  config.base = reader.text("base_model_name_or_path");
  return config;
}

// The layer that a tensor belongs to, and its place there.
at::Tensor& place_of(const std::string& tensor, const std::string& path,
                     std::map<std::string, AdapterWeights>& layers) {
  std::string_view name = tensor;
  const bool is_a = name.ends_with(kSuffixA), is_b = name.ends_with(kSuffixB);
  if (!name.starts_with(kPrefix) || (!is_a && !is_b)) {
    refuse_adapter(ErrorCode::kUnsupported, path,
                   fmt::format("has a tensor '{}', which is neither A nor B of a linear layer",
                               for_message(tensor)),
                   "only LoRA of linear layers is supported, without embeddings, DoRA and "
                   "modules_to_save");
  }
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(is_a ? kSuffixA.size() : kSuffixB.size());
  AdapterWeights& weights = layers[std::string(name)];
  return is_a ? weights.a : weights.b;
}

void check_pair(const std::string& layer, const AdapterWeights& weights, const std::string& path) {
  if (!weights.a.defined() || !weights.b.defined()) {
    refuse_adapter(
        ErrorCode::kInvalidArgument, path,
        fmt::format("has no lora_{} for '{}'", weights.a.defined() ? "B" : "A", for_message(layer)),
        "write the adapter again");
  }
  for (const at::Tensor& matrix : {weights.a, weights.b}) {
    if (matrix.dim() == 2 && matrix.is_floating_point()) continue;
    refuse_adapter(ErrorCode::kUnsupported, path,
                   fmt::format("A or B of '{}' is {} of [{}], and only floating-point matrices are "
                               "supported",
                               for_message(layer), c10::toString(matrix.scalar_type()),
                               fmt::join(matrix.sizes(), ", ")),
                   "only LoRA of linear layers is supported");
  }
  if (weights.a.size(0) != weights.b.size(1)) {
    refuse_adapter(ErrorCode::kInvalidArgument, path,
                   fmt::format("A and B of '{}' have different ranks: {} and {}",
                               for_message(layer), weights.a.size(0), weights.b.size(1)),
                   "write the adapter again");
  }
}

json config_keys(const AdapterConfig& config) {
  json targets = config.target_modules;
  if (!config.target_pattern.empty()) targets = config.target_pattern;
  const auto or_null = [](json value) { return value.empty() ? json(nullptr) : std::move(value); };
  return {{"peft_type", "LORA"},
          {"task_type", nullptr},
          {"base_model_name_or_path", config.base.empty() ? json(nullptr) : json(config.base)},
          {"inference_mode", true},
          {"r", config.rank},
          {"lora_alpha", config.alpha == std::floor(config.alpha) && std::abs(config.alpha) < 1e9
                             ? json(static_cast<int64_t>(config.alpha))
                             : json(config.alpha)},
          {"lora_dropout", config.dropout},
          {"use_rslora", config.rslora},
          {"target_modules", std::move(targets)},
          {"exclude_modules", or_null(config.exclude_modules)},
          {"fan_in_fan_out", config.transposed},
          {"bias", "none"},
          {"init_lora_weights", true},
          {"rank_pattern", config.rank_pattern},
          {"alpha_pattern", json::object()},
          {"modules_to_save", nullptr},
          {"use_dora", false}};
}

}  // namespace

int64_t AdapterConfig::rank_of(const std::string& layer) const {
  const auto found = rank_pattern.find(layer);
  return found == rank_pattern.end() ? rank : found->second;
}

AdapterFiles read_adapter(const std::string& folder) {
  AdapterFiles files{.config = read_config(path_in(folder, kConfigFile)), .layers = {}};
  const std::string path = path_in(folder, kWeightsFile);
  const SafeTensors tensors = SafeTensors::open(path);
  for (const std::string& name : tensors.names())
    place_of(name, path, files.layers) = tensors.tensor(name);
  if (files.layers.empty())
    refuse_adapter(ErrorCode::kInvalidArgument, path, "has no tensors", "write the adapter again");
  for (const auto& [layer, weights] : files.layers) {
    check_pair(layer, weights, path);
    // PEFT's patterns are not needed: the tensors have the ranks.
    if (weights.a.size(0) != files.config.rank)
      files.config.rank_pattern[layer] = weights.a.size(0);
  }
  return files;
}

void write_adapter(const std::string& folder, const AdapterFiles& files) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) throw_io("create", folder, failed.value());
  std::map<std::string, at::Tensor> tensors;
  std::vector<safetensors::TensorEntry> entries;
  for (const auto& [layer, weights] : files.layers) {
    for (const auto& [suffix, matrix] : {std::pair(kSuffixA, weights.a), {kSuffixB, weights.b}}) {
      const std::string name = fmt::format("{}{}{}", kPrefix, layer, suffix);
      tensors[name] = matrix.detach().to(at::kCPU).contiguous();
      entries.push_back(
          {name, safetensors::dtype_of(matrix.scalar_type(), name), matrix.sizes().vec()});
    }
  }
  const std::string path = path_in(folder, kWeightsFile);
  const std::string part = fmt::format("{}.{}.part", path, ::getpid());
  fs::remove(part, failed);  // left by a killed process with our number
  {
    safetensors::Writer writer(part, std::move(entries), {{"format", "pt"}});
    for (const safetensors::TensorInfo& info : writer.tensors()) {
      const at::Tensor& tensor = tensors.at(info.name);
      writer.write(info.name, tensor.const_data_ptr(), tensor.nbytes());
    }
    writer.finish();
  }
  // The configuration comes last: readers begin with it.
  rename_durably(part, path);
  replace_file(path_in(folder, kConfigFile), config_keys(files.config).dump(2) + "\n");
}

}  // namespace coupler::adapters
