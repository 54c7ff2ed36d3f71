// Models opened from folders that transformers wrote: their dtype and the placement of their
// weights, text generation with a language model, and sentence embeddings.
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <coupler/accelerator.h>
#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <coupler/model_config.h>
#include <coupler/objects.h>
#include <coupler/text.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "base/durable_file.h"
#include "base/text.h"
#include "base/units.h"
#include "hub/model_files.h"
#include "json_file.h"
#include "nets/bert.h"
#include "tensors/safetensors.h"
#include "weights/open_weights.h"
#include "weights/write_weights.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

std::string name_of(c10::ScalarType type) { return std::string(c10::getDtypeNames(type).first); }

// The device on which a model with these options will run.
c10::Device running_device(const PretrainedOptions& options) {
  const auto kind = at::getAccelerator();
  if (!kind || at::accelerator::deviceCount() == 0) return c10::kCPU;
  const c10::Device first(*kind, 0);
  if (const auto* const map = std::get_if<DeviceMap>(&options.device_map)) {
    for (const auto& [path, device] : map->entries()) {
      if (device.is_accelerator()) return first;
    }
    return c10::kCPU;
  }
  if (std::get<std::string>(options.device_map).empty()) return c10::kCPU;
  if (options.max_memory.empty()) return first;
  for (const auto& [device, bytes] : options.max_memory.devices()) {
    if (device.is_accelerator()) return first;
  }
  return c10::kCPU;
}

// Tries the operations of a transformer on dummy data.
bool computes(c10::Device device, c10::ScalarType type) {
  if (!c10::isFloatingType(type)) return false;
  const at::NoGradGuard no_grad;
  try {
    const at::TensorOptions options = at::TensorOptions(type).device(device);
    const at::Tensor x = at::zeros({1, 2, 4, 8}, options), w = at::zeros({8, 8}, options);
    at::layer_norm(at::gelu(at::linear(x, w)), {8});
    at::softmax(at::scaled_dot_product_attention(x, x, x), -1);
    return true;
  } catch (const c10::Error&) {
    return false;  // LibTorch has no kernel for this type
  }
}

// The options' dtype, or config.json's, or float. Throws Error(kUnsupported) if the device that the
// options select cannot compute with it; the message lists the dtypes with which it can.
c10::ScalarType usable_dtype(const ModelConfig& config, const PretrainedOptions& options) {
  constexpr c10::ScalarType kKnown[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};
  c10::ScalarType type = at::kFloat;
  std::string from = "float32 is the default";
  if (options.dtype) {
    type = *options.dtype;
    from = "options.dtype";
  } else if (const std::string saved = config.dtype(); !saved.empty()) {
    from = config.where();
    const auto* const known =
        std::find_if(std::begin(kKnown), std::end(kKnown),
                     [&](c10::ScalarType candidate) { return name_of(candidate) == saved; });
    if (known == std::end(kKnown))
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("{}: the weights' dtype '{}' is not supported", config.where(), saved),
          {.subject = "dtype", .hint = "set options.dtype, for example to torch::kFloat"});
    type = *known;
  }
  const c10::Device device = running_device(options);
  if (computes(device, type)) return type;
  std::string able;
  for (const c10::ScalarType candidate : kKnown) {
    if (computes(device, candidate)) able += (able.empty() ? "" : ", ") + name_of(candidate);
  }
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{} cannot compute a transformer in {} ({})", device.str(), name_of(type), from),
      {.subject = "dtype", .hint = fmt::format("set options.dtype to one of {}", able)});
}

// Loads the weights of a model that was built under EmptyWeights.
DispatchedModel load_pretrained(torch::nn::Module& model, const std::string& folder,
                                const ModelConfig& config, const PretrainedOptions& options,
                                const char* block_class,
                                std::function<std::string(const std::string&)> names) {
  LoadAndDispatchOptions load;
  load.device_map = options.device_map;
  load.max_memory = options.max_memory;
  load.no_split_module_classes = {block_class};
  load.offload_folder = options.offload_folder;
  load.dtype = usable_dtype(config, options);
  load.strict = options.strict;
  load.prefetch = options.prefetch;
  load.rename = std::move(names);
  load.quantize = options.quantize;
  if (load.quantize) {
    load.quantize->linear_classes.emplace_back("Head");
    load.quantize->transposed_classes.emplace_back("Conv1D");
  }
  return load_checkpoint_and_dispatch(model, folder, load);
}

// The files of tokenizers and of generation settings.
constexpr const char* kCopied[] = {"tokenizer.json",
                                   "tokenizer_config.json",
                                   "special_tokens_map.json",
                                   "added_tokens.json",
                                   "vocab.json",
                                   "merges.txt",
                                   "tokenizer.model",
                                   "chat_template.jinja",
                                   "generation_config.json"};

constexpr const char* kFolder =
    "use a folder saved by sentence-transformers: tokenizer.json, config.json, weights";

[[noreturn]] void refuse_encoder(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, fmt::format("{}: {} is not supported", where, what),
              {.subject = where,
               .hint = "use an encoder with a Transformer, a Pooling of mean, cls or max, and "
                       "optionally Normalize"});
}

// Newer files have "pooling_mode"; older ones have a flag for each mode.
std::string pooling_in(const fs::path& folder) {
  const std::string path = (folder / "config.json").string();
  const nlohmann::json document = read_json_file(path, kFolder);
  const JsonObject config(document, path);
  if (config.has("pooling_mode")) return config.text("pooling_mode");
  std::string mode;
  for (const auto& [key, value] : document.items()) {
    constexpr std::string_view kStart = "pooling_mode_";
    if (!std::string_view(key).starts_with(kStart) || !value.is_boolean() || !value.get<bool>())
      continue;
    if (!mode.empty()) refuse_encoder(path, "more than one pooling mode at once");
    mode = key.substr(kStart.size());
  }
  return mode;
}

void write_config(const ModelConfig& config, const std::string& folder, const std::string& dtype) {
  replace_file((fs::path(folder) / "config.json").string(), config.to_json(dtype));
  const std::string generation = config.generation_to_json();
  if (!generation.empty()) {
    replace_file((fs::path(folder) / "generation_config.json").string(), generation);
  }
}

// The first floating-point dtype of the weights in a folder; empty if there is none.
std::string saved_dtype(const std::string& folder) {
  for (const weights::WeightTensor& tensor : weights::open_weights(folder, {}).tensors) {
    const c10::ScalarType type = safetensors::scalar_type(tensor.dtype, tensor.name);
    if (c10::isFloatingType(type)) return name_of(type);
  }
  return "";
}

}  // namespace

void save_pretrained(const torch::nn::Module& model, const ModelConfig& config,
                     const std::string& folder, const std::string& max_shard_size) {
  const uint64_t limit = parse_byte_size(max_shard_size, "max_shard_size");
  weights::WeightSource source;
  std::unordered_set<const void*> written;
  std::string dtype;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!written.insert(tensor.unsafeGetTensorImpl()).second)
      return;  // another name of a tied tensor
    if (tensor.is_meta())
      throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' has no values to save", name),
                  {.subject = name, .hint = "load the model's weights first"});
    if (dtype.empty() && tensor.is_floating_point()) dtype = name_of(tensor.scalar_type());
    source.tensors.push_back(
        {.name = name,
         .dtype = safetensors::dtype_of(tensor.scalar_type(), name),
         .shape = tensor.sizes().vec(),
         .read = [tensor](const weights::ByteSink& sink) {
           // A copy, because offloaded weights are in memory only during one operation.
           const at::NoGradGuard no_grad;
           const at::Tensor dense =
               tensor.detach().clone(at::MemoryFormat::Contiguous).to(at::kCPU);
           sink(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
         }});
  };
  for (const auto& item : model.named_parameters()) add(item.key(), item.value());
  for (const auto& item : model.named_buffers()) add(item.key(), item.value());
  fs::create_directories(folder);
  weights::write_weights(source, folder, limit);
  write_config(config, folder, dtype);
}

void save_pretrained(Accelerator& accelerator, torch::nn::Module& model, const ModelConfig& config,
                     const std::string& folder, const SaveModelOptions& options) {
  accelerator.save_model(model, folder, options);
  std::string problem;
  if (accelerator.is_main_process()) {
    try {
      write_config(config, folder, saved_dtype(folder));
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  problem = broadcast_object(accelerator, problem);
  if (!problem.empty()) {
    throw Error(ErrorCode::kIo, "save_pretrained: " + problem, {.rank = 0, .subject = folder});
  }
}

TextGeneration pipeline(const std::string& task, const std::string& model_or_folder,
                        const PretrainedOptions& options) {
  if (task != "text-generation")
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("pipeline: task '{}' is not supported", for_message(task)),
                {.subject = task,
                 .hint = "use \"text-generation\"; for sentence embeddings, use SentenceEncoder"});
  const std::string folder = hub::model_folder(model_or_folder, hub::ModelUse::kLanguageModel);
  ModelConfig config = ModelConfig::open(folder);
  std::shared_ptr<LanguageModel> model;
  {
    const EmptyWeights empty;
    model = make_language_model(config);
  }
  model->eval();
  DispatchedModel placed = load_pretrained(*model, folder, config, options, model->block_class(),
                                           checkpoint_names(*model));
  return {folder, std::move(config), std::move(model), std::move(placed)};
}

const Tokenizer& TextGeneration::tokenizer() const {
  if (!tokenizer_) tokenizer_ = Tokenizer::open(folder_);
  return *tokenizer_;
}

GeneratedText TextGeneration::operator()(const std::string& prompt,
                                         const GenerationOptions& options) {
  return std::move((*this)(std::vector<std::string>{prompt}, options).front());
}

std::vector<GeneratedText> TextGeneration::operator()(const std::vector<std::string>& prompts,
                                                      const GenerationOptions& options) {
  std::vector<std::vector<int64_t>> tokens;
  for (const std::string& prompt : prompts) tokens.push_back(tokenizer().encode(prompt));
  return continue_tokens(tokens, options);
}

GeneratedText TextGeneration::chat(const std::vector<ChatMessage>& messages,
                                   const GenerationOptions& options, ChatOptions chat_options) {
  chat_options.add_generation_prompt = true;
  const std::string text = tokenizer().apply_chat_template(messages, chat_options);
  return std::move(continue_tokens({tokenizer().encode(text, /*special=*/false)}, options).front());
}

std::vector<GeneratedText> TextGeneration::continue_tokens(
    const std::vector<std::vector<int64_t>>& prompts, const GenerationOptions& options) {
  time_ = {};
  std::vector<GeneratedText> results;
  const size_t step = std::max<size_t>(options.batch_size, 1);
  for (size_t first = 0; first < prompts.size(); first += step) {
    const size_t last = std::min(first + step, prompts.size());
    const std::vector<std::vector<int64_t>> part(
        prompts.begin() + static_cast<std::ptrdiff_t>(first),
        prompts.begin() + static_cast<std::ptrdiff_t>(last));
    GenerationOptions own = options;
    if (own.end_tokens.empty()) own.end_tokens = config_.end_tokens();
    if (own.seed) *own.seed += first;
    std::vector<TextStream> streams;
    if (options.on_text) streams.assign(part.size(), TextStream(tokenizer()));
    own.on_token = [&](size_t text, int64_t token) {
      if (options.on_token) options.on_token(first + text, token);
      if (!options.on_text) return;
      const std::string piece = streams[text].add(token);
      if (!piece.empty()) options.on_text(first + text, piece);
    };
    std::vector<GeneratedTokens> generated = generate(*model_, part, own, &time_);
    for (size_t i = 0; i < generated.size(); ++i) {
      const std::string rest = options.on_text ? streams[i].finish() : "";
      if (!rest.empty()) options.on_text(first + i, rest);
      results.push_back({tokenizer_ ? tokenizer_->decode(generated[i].tokens) : "",
                         std::move(generated[i].tokens), generated[i].ended});
    }
  }
  return results;
}

void TextGeneration::save_pretrained(const std::string& folder,
                                     const std::string& max_shard_size) const {
  coupler::save_pretrained(*model_, config_, folder, max_shard_size);
  for (const char* name : kCopied) {
    const fs::path from = fs::path(folder_) / name, to = fs::path(folder) / name;
    std::error_code missing;
    if (!fs::exists(from) || fs::equivalent(from, to, missing)) continue;
    std::ifstream in(from, std::ios::binary);
    replace_file(to.string(), {std::istreambuf_iterator<char>(in), {}});
  }
}

SentenceEncoder::EncodingOptions SentenceEncoder::read_encoding_options(const std::string& folder,
                                                                        int64_t positions) {
  EncodingOptions encoding;
  const fs::path root(folder);
  if (fs::exists(root / "modules.json")) {
    const std::string path = (root / "modules.json").string();
    const nlohmann::json modules = read_json_file(path, kFolder);
    for (const nlohmann::json& module : modules) {
      const JsonObject part(module, path);
      const std::string type = part.text("type");
      const std::string kind = type.substr(type.rfind('.') + 1);
      if (kind == "Normalize") {
        encoding.normalize = true;
      } else if (kind == "Pooling") {
        const std::string mode = pooling_in(root / part.text("path"));
        if (mode == "cls" || mode == "cls_token") {
          encoding.pooling = Pooling::kFirst;
        } else if (mode == "max" || mode == "max_tokens") {
          encoding.pooling = Pooling::kMax;
        } else if (mode != "mean" && mode != "mean_tokens") {
          refuse_encoder(path, "pooling mode '" + for_message(mode) + "'");
        }
      } else if (kind != "Transformer") {
        refuse_encoder(path, "module '" + for_message(type) + "'");
      }
    }
  }
  int64_t most = positions;
  for (const auto& [name, key] : {std::pair{"tokenizer_config.json", "model_max_length"},
                                  std::pair{"sentence_bert_config.json", "max_seq_length"}}) {
    const std::string path = (root / name).string();
    if (!fs::exists(path)) continue;
    const nlohmann::json document = read_json_file(path, kFolder);
    // transformers writes 10^30 for "no limit".
    const double limit = JsonObject(document, path).number(key, double(positions));
    if (limit >= 1 && limit < double(most)) most = static_cast<int64_t>(limit);
  }
  encoding.max_tokens = static_cast<size_t>(most);
  return encoding;
}

SentenceEncoder SentenceEncoder::open(const std::string& model_or_folder,
                                      const PretrainedOptions& options) {
  const std::string folder = hub::model_folder(model_or_folder, hub::ModelUse::kEncoder);
  const ModelConfig config = ModelConfig::open(folder);
  std::shared_ptr<BertModel> model;
  {
    const EmptyWeights empty;
    model = std::make_shared<BertModel>(config);
  }
  model->eval();
  const EncodingOptions encoding = read_encoding_options(folder, model->positions());
  Tokenizer tokenizer = Tokenizer::open(folder);
  DispatchedModel placed =
      load_pretrained(*model, folder, config, options, "BertLayer", bert_checkpoint_name);
  return {std::move(tokenizer), std::move(model), std::move(placed), encoding};
}

int64_t SentenceEncoder::width() const { return model_->width(); }

at::Tensor SentenceEncoder::encode(const std::vector<std::string>& sentences,
                                   size_t batch_size) const {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<int64_t>> tokens;
  for (const std::string& sentence : sentences)
    tokens.push_back(tokenizer_.encode(sentence, /*special=*/true, encoding_.max_tokens));
  // Longest first, so that batches need little padding.
  std::vector<size_t> order(sentences.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return tokens[a].size() > tokens[b].size(); });
  at::Tensor result = at::empty({static_cast<int64_t>(sentences.size()), width()}, at::kFloat);
  batch_size = std::max<size_t>(batch_size, 1);
  for (size_t first = 0; first < order.size(); first += batch_size) {
    const size_t last = std::min(first + batch_size, order.size());
    const auto rows = static_cast<int64_t>(last - first);
    const auto longest = std::max<int64_t>(static_cast<int64_t>(tokens[order[first]].size()), 1);
    const at::Tensor ids = at::zeros({rows, longest}, at::kLong);
    const at::Tensor text = at::zeros({rows, longest}, at::kBool);
    for (int64_t row = 0; row < rows; ++row) {
      const auto& own = tokens[order[first + static_cast<size_t>(row)]];
      std::copy(own.begin(), own.end(), ids.mutable_data_ptr<int64_t>() + row * longest);
      text[row].narrow(0, 0, static_cast<int64_t>(own.size())).fill_(true);
    }
    const at::Tensor hidden = model_->forward(ids, text).to(at::kCPU, at::kFloat);
    const at::Tensor some = text.unsqueeze(-1);
    at::Tensor pooled;
    switch (encoding_.pooling) {
      case Pooling::kFirst:
        pooled = hidden.select(1, 0);
        break;
      case Pooling::kMax:
        pooled =
            hidden.masked_fill(some.logical_not(), -std::numeric_limits<float>::infinity()).amax(1);
        break;
      case Pooling::kMean:
        pooled = hidden.mul(some).sum(1).div(some.sum(1).clamp_min(1));
        break;
    }
    if (encoding_.normalize) pooled = pooled.div(pooled.norm(2, -1, true).clamp_min(1e-12));
    for (int64_t row = 0; row < rows; ++row)
      result[static_cast<int64_t>(order[first + static_cast<size_t>(row)])].copy_(pooled[row]);
  }
  return result;
}

}  // namespace coupler
