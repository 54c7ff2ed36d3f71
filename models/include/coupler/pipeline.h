// pipeline: loads a model and its tokenizer from a folder written by transformers, in one call; a
// device map places the weights (coupler/big_model.h).
//
//   auto generator = coupler::pipeline("text-generation", "gpt-j-6B",
//                                      {.device_map = "auto", .dtype = torch::kHalf});
//   std::cout << generator("Hello, my name is").text << "\n";
//
// Used by one thread. Errors are coupler::Error and say what to do.
#pragma once

#include <coupler/big_model.h>
#include <coupler/generation.h>
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

// task: "text-generation". Throws Error(kInvalidArgument) for another task, naming the supported
// one; Error(kUnsupported) for an unsupported architecture, listing the supported ones, and for a
// dtype that the device cannot compute in; Error(kIo) for a folder without config.json; and as
// load_checkpoint_and_dispatch does.
[[nodiscard]] TextGeneration pipeline(const std::string& task, const std::string& folder,
                                      const PretrainedOptions& options = {});

// Writes config.json and the model's weights as safetensors files of at most max_shard_size. An
// existing file is replaced only once its successor is on disk. For a model sharded over ranks, use
// Accelerator::save_model for the weights, and write config.to_json() next to them.
void save_pretrained(const torch::nn::Module& model, const ModelConfig& config,
                     const std::string& folder, const std::string& max_shard_size = "10GB");

}  // namespace coupler
