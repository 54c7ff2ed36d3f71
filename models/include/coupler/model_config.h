// ModelConfig: what config.json says of a model, as transformers writes it. Immutable, any thread;
// cheap to copy. Sees no LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace coupler {

class JsonObject;

class ModelConfig {
 public:
  // Of a folder with config.json (and generation_config.json, where there is one). Throws
  // Error(kIo) naming the file where it cannot be read.
  static ModelConfig open(const std::string& folder);
  // The text of a config.json. where: its name, for messages.
  static ModelConfig parse(const std::string& text, const std::string& where = "config.json");

  // "gpt2". Throws Error(kInvalidArgument) where it is missing.
  std::string model_type() const;
  // "float16", as the weights were saved; empty where it does not say.
  std::string dtype() const;
  // With which a text ends; those of generation_config.json go before config.json's.
  std::vector<int64_t> end_tokens() const;
  // config.json as it was, with another dtype where one is given, and with the class that
  // transformers opens the weights with where it named none.
  std::string to_json(const std::string& dtype = "") const;
  const std::string& where() const;

  // For models: all of its keys. Lives as long as a copy of the ModelConfig.
  const JsonObject& keys() const;

 private:
  struct State;
  explicit ModelConfig(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

}  // namespace coupler
