// Text models from folders written by transformers: text generation with a language model, and
// sentence embeddings. Each object is used by one thread. Errors are coupler::Error and say what to
// do.
//
// A model is a folder, or a name on the Hugging Face Hub: "gpt2", "EleutherAI/gpt-j-6B", each also
// with "@REVISION" (a branch, a tag or a commit). A folder of that name comes first. The files of a
// name come from the Hugging Face cache, and are downloaded into it if they are missing; see
// docs/generation.md. Error(kIo) names the model, the cache and what to do if that fails.
//
//   auto generator = coupler::pipeline("text-generation", "EleutherAI/gpt-j-6B",
//                                      {.device_map = "auto", .dtype = torch::kHalf});
//   std::cout << generator("Hello, my name is").text << "\n";
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/big_model.h>
#include <coupler/checkpoint.h>
#include <coupler/fwd.h>
#include <coupler/language_model.h>
#include <coupler/tokenizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace coupler {

// Names and meanings as in transformers.
struct GenerationOptions {
  int64_t max_new_tokens = 50;  // fewer if the model's context ends first
  // False: always the most likely token. The next four options apply to true only.
  bool do_sample = false;
  double temperature = 1.0;  // above 0; below 1, likely tokens become likelier
  int64_t top_k = 50;        // keep only this many most likely tokens; 0: all
  double top_p = 1.0;        // keep only the most likely tokens with this total probability
  // Each text has its own generator, seeded by this and its index in the call, so its result does
  // not depend on the other texts in the batch. Unset: a new seed for each call.
  std::optional<uint64_t> seed;
  std::vector<int64_t> end_tokens;  // any of these ends a text
  bool use_cache = true;            // false recomputes all tokens at each step
  // Called with each token as soon as it is generated: the text's index, and the token.
  std::function<void(size_t text, int64_t token)> on_token;

  // For pipelines, which handle text: a callback for each piece of new text once it is final, and
  // the number of prompts that run as one batch.
  std::function<void(size_t text, const std::string& piece)> on_text;
  size_t batch_size = 8;
};

// What was generated for one prompt.
struct GeneratedTokens {
  std::vector<int64_t> tokens;  // the new tokens, including an end token
  bool ended = false;           // by an end token; otherwise by max_new_tokens or the context
};

// Time of generation, for all texts together.
struct GenerationTime {
  // Number of tokens of all texts.
  int64_t prompt_tokens = 0, new_tokens = 0;
  double prompt_seconds = 0;  // until the first new token of each text
  double decode_seconds = 0;  // for the other new_tokens
  // Of decoding alone; 0 if there was none.
  double tokens_per_second() const;
  GenerationTime& operator+=(const GenerationTime& other);

  int64_t texts = 0;  // number of texts
};

// Continues prompts with a language model, token by token, greedily or by sampling. Prompts of
// different lengths run as one batch. prompts: tokens of each text, at least one. Throws
// Error(kInvalidArgument) for invalid options, a prompt that is empty or longer than the model's
// context, and tokens outside the vocabulary.
std::vector<GeneratedTokens> generate(LanguageModel& model,
                                      const std::vector<std::vector<int64_t>>& prompts,
                                      const GenerationOptions& options = {},
                                      GenerationTime* time = nullptr);

// Returns the probability with which sampling chooses each token, as float in the shape of logits,
// [texts, vocabulary]. A pure function.
at::Tensor sampling_probabilities(const at::Tensor& logits, const GenerationOptions& options);

// How a model's weights are loaded and placed; the fields are those of LoadAndDispatchOptions.
struct PretrainedOptions {
  // A map, or the mode in which one is created.
  std::variant<std::string, DeviceMap> device_map = std::string("auto");
  // The dtype of the loaded weights. Unset: the saved dtype according to config.json.
  std::optional<c10::ScalarType> dtype;
  MaxMemory max_memory;
  std::string offload_folder;
  int prefetch = 2;
  // False skips tensors of the checkpoint that the model does not have.
  bool strict = true;
  // Quantizes linear layers' weights to 8 or 4 bits (coupler/quantize.h), except a head tied to the
  // embeddings. The linear classes of these models are set automatically.
  std::optional<QuantizeOptions> quantize;
};

// What was generated for one prompt.
struct GeneratedText {
  std::string text;             // the new text, without special tokens
  std::vector<int64_t> tokens;  // the new tokens
  bool ended = false;           // by the model; otherwise by max_new_tokens or its context
};

// A language model and its tokenizer, returned by pipeline("text-generation", ...). Used by one
// thread.
class TextGeneration {
 public:
  // Continues a prompt. If options.end_tokens is empty, ModelConfig::end_tokens is used. Throws as
  // generate does.
  GeneratedText operator()(const std::string& prompt, const GenerationOptions& options = {});
  // Continues several prompts; results are in their order.
  std::vector<GeneratedText> operator()(const std::vector<std::string>& prompts,
                                        const GenerationOptions& options = {});
  // Answers the last message of a chat, in the way of the tokenizer's chat template
  // (coupler/chat_template.h), whose generation prompt is added. Throws as generate and
  // Tokenizer::apply_chat_template do.
  GeneratedText chat(const std::vector<ChatMessage>& messages,
                     const GenerationOptions& options = {}, ChatOptions chat_options = {});
  // The same for tokens, which needs no tokenizer.
  std::vector<GeneratedText> continue_tokens(const std::vector<std::vector<int64_t>>& prompts,
                                             const GenerationOptions& options = {});

  // The time of the last call; the model and its configuration.
  const GenerationTime& time() const { return time_; }
  LanguageModel& model() { return *model_; }
  const ModelConfig& config() const { return config_; }
  // Throws Error(kUnsupported) or Error(kIo) if the folder has no tokenizer that can be read.
  const Tokenizer& tokenizer() const;
  const DeviceMap& device_map() const { return placed_.device_map(); }

  // Writes config.json, the weights and the tokenizer's files: a folder that transformers can open.
  void save_pretrained(const std::string& folder, const std::string& max_shard_size = "10GB") const;

 private:
  friend TextGeneration pipeline(const std::string&, const std::string&, const PretrainedOptions&);
  TextGeneration(std::string folder, ModelConfig config, std::shared_ptr<LanguageModel> model,
                 DispatchedModel placed)
      : folder_(std::move(folder)),
        config_(std::move(config)),
        model_(std::move(model)),
        placed_(std::move(placed)) {}

  std::string folder_;
  ModelConfig config_;
  std::shared_ptr<LanguageModel> model_;
  DispatchedModel placed_;
  mutable std::optional<Tokenizer> tokenizer_;  // opened on first use
  GenerationTime time_;
};

// Loads a model and its tokenizer from a folder or by its name on the Hub, in one call; a device
// map places the weights (coupler/big_model.h). task: "text-generation". Throws
// Error(kInvalidArgument) for another task, naming the supported one; Error(kUnsupported) for an
// unsupported architecture, listing the supported ones, and for a dtype that the device cannot
// compute in; Error(kIo) for a folder without config.json; and as load_checkpoint_and_dispatch
// does.
[[nodiscard]] TextGeneration pipeline(const std::string& task, const std::string& model_or_folder,
                                      const PretrainedOptions& options = {});

// Writes the model's weights as safetensors files of at most max_shard_size, config.json and, if
// the config has them, the settings of generation_config.json: a folder that transformers can open.
// An existing file is replaced only once its successor is on disk.
void save_pretrained(const torch::nn::Module& model, const ModelConfig& config,
                     const std::string& folder, const std::string& max_shard_size = "10GB");

// The same for a prepared model under any backend, such as one sharded over ranks: its weights as
// by Accelerator::save_model, of options.dtype if that is set. If it fails, every rank throws.
// Collective.
void save_pretrained(Accelerator& accelerator, torch::nn::Module& model, const ModelConfig& config,
                     const std::string& folder, const SaveModelOptions& options = {});

class BertModel;

// SentenceEncoder: sentence embeddings from a BERT model, equal to those of Python's
// sentence-transformers for the same folder (all-MiniLM-L6-v2 and similar): WordPiece tokens, then
// mean, first or maximum of the last hidden states, normalized to length 1 if the folder says so.
//
//   auto encoder = coupler::SentenceEncoder::open("all-MiniLM-L6-v2");
//   at::Tensor embeddings = encoder.encode({"a man eats", "a woman is having lunch"});
//
// Used by one thread. Errors are coupler::Error and say what to do.
class SentenceEncoder {
 public:
  // Throws as pipeline does, and Error(kUnsupported) for an unsupported pooling mode or module.
  static SentenceEncoder open(const std::string& model_or_folder,
                              const PretrainedOptions& options = {});

  // Returns [sentences, width] of float, in host memory, in the order given. Sentences are
  // truncated to the model's maximum length. batch_size: how many sentences of similar length run
  // together.
  at::Tensor encode(const std::vector<std::string>& sentences, size_t batch_size = 32) const;

  // The size of an embedding; the tokenizer; where the weights are.
  int64_t width() const;
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const DeviceMap& device_map() const { return placed_.device_map(); }

 private:
  enum class Pooling { kMean, kFirst, kMax };
  struct EncodingOptions {  // how the folder's configuration processes hidden states
    Pooling pooling = Pooling::kMean;
    bool normalize = false;
    size_t max_tokens = 0;
  };
  static EncodingOptions read_encoding_options(const std::string& folder, int64_t positions);
  SentenceEncoder(Tokenizer tokenizer, std::shared_ptr<BertModel> model, DispatchedModel placed,
                  EncodingOptions encoding)
      : tokenizer_(std::move(tokenizer)),
        model_(std::move(model)),
        placed_(std::move(placed)),
        encoding_(encoding) {}

  Tokenizer tokenizer_;
  std::shared_ptr<BertModel> model_;
  DispatchedModel placed_;
  EncodingOptions encoding_;
};

}  // namespace coupler
