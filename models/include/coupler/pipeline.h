// pipeline: a model and its tokenizer out of a folder, as transformers writes it, in one call; the
// weights lie where a device map says (coupler/big_model.h).
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

// Where a model's weights lie; the fields are LoadAndDispatchOptions'.
struct PretrainedOptions {
  // A map, or the way in which one is made.
  std::variant<std::string, DeviceMap> device_map = std::string("auto");
  // What the weights become. Unset: as config.json says they were saved.
  std::optional<c10::ScalarType> dtype;
  MaxMemory max_memory;
  std::string offload_folder;
  int prefetch = 2;
  // False passes over tensors of the checkpoint that the model does not have.
  bool strict = true;
  // Linear layers' weights to 8 or 4 bits (coupler/quantize.h); a head that is the embeddings'
  // weights stays. The classes that these models are made of are known here.
  std::optional<QuantizeOptions> quantize;
};

// What was generated for one prompt.
struct GeneratedText {
  std::string text;             // what is new, without special tokens
  std::vector<int64_t> tokens;  // of it
  bool ended = false;           // by the model; else by max_new_tokens or its context
};

// A language model and its tokenizer; what pipeline("text-generation", ...) gives. Used by one
// thread.
class TextGeneration {
 public:
  // end_tokens of options: where empty, config.json's. Throws as generate does.
  GeneratedText operator()(const std::string& prompt, const GenerationOptions& options = {});
  // Several at once, in their order.
  std::vector<GeneratedText> operator()(const std::vector<std::string>& prompts,
                                        const GenerationOptions& options = {});
  // The same for tokens, which needs no tokenizer.
  std::vector<GeneratedText> continue_tokens(const std::vector<std::vector<int64_t>>& prompts,
                                             const GenerationOptions& options = {});

  // Of the last call.
  const GenerationTime& time() const { return time_; }
  LanguageModel& model() { return *model_; }
  const ModelConfig& config() const { return config_; }
  // Throws Error(kUnsupported) or Error(kIo) where the folder has none that can be read.
  const Tokenizer& tokenizer() const;
  const DeviceMap& device_map() const { return placed_.device_map(); }

  // config.json, weights and the tokenizer's files: a folder that transformers opens.
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
  mutable std::optional<Tokenizer> tokenizer_;  // opened when it is needed first
  GenerationTime time_;
};

// task: "text-generation". Throws Error(kInvalidArgument) for another, naming what is there;
// Error(kUnsupported) for an architecture that is not there, with a list of those that are, and for
// a dtype that the device cannot compute with; Error(kIo) for a folder without config.json; and as
// load_checkpoint_and_dispatch does.
[[nodiscard]] TextGeneration pipeline(const std::string& task, const std::string& folder,
                                      const PretrainedOptions& options = {});

// Writes config.json and the model's weights as safetensors files of at most that size, each
// replaced only once its successor is on the disk. Of a model that ranks hold in parts,
// Accelerator::save_model writes the weights, and config.to_json() is what belongs beside them.
void save_pretrained(const torch::nn::Module& model, const ModelConfig& config,
                     const std::string& folder, const std::string& max_shard_size = "10GB");

}  // namespace coupler
