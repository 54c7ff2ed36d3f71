// ModelConfig: a model's config.json, as written by transformers. Immutable, any thread; cheap to
// copy. Independent of LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace coupler {

class JsonObject;

class ModelConfig {
 public:
  // Reads config.json (and generation_config.json, if present) from a folder, or of a model on the
  // Hugging Face Hub (see coupler/text.h). Throws Error(kIo) naming the file if it cannot be read.
  static ModelConfig open(const std::string& folder);
  // Parses the contents of a config.json. where: its name, for messages.
  static ModelConfig parse(const std::string& text, const std::string& where = "config.json");

  // The model type, such as "gpt2". Throws Error(kInvalidArgument) if it is missing.
  std::string model_type() const;
  // The dtype of the saved weights, such as "float16"; empty if not given.
  std::string dtype() const;
  // The tokens that end a text; generation_config.json takes precedence over config.json.
  std::vector<int64_t> end_tokens() const;
  // config.json as read, with `dtype` if given, and with the class that transformers needs to open
  // the weights if it named none.
  std::string to_json(const std::string& dtype = "") const;
  // generation_config.json as read; empty if there was none.
  std::string generation_to_json() const;
  const std::string& where() const;

  // For models: all keys. Valid as long as a copy of the ModelConfig lives.
  const JsonObject& keys() const;

 private:
  struct State;
  explicit ModelConfig(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

}  // namespace coupler
