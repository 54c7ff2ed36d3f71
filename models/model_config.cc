#include <coupler/error.h>
#include <coupler/model_config.h>
#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "hub/model_files.h"
#include "json_file.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder =
    "use a folder written by transformers' save_pretrained, with config.json and weights";

// The classes of transformers that open the weights, by model_type.
constexpr std::pair<const char*, const char*> kClasses[] = {{"bert", "BertModel"},
                                                            {"gemma", "GemmaForCausalLM"},
                                                            {"gemma2", "Gemma2ForCausalLM"},
                                                            {"gemma3_text", "Gemma3ForCausalLM"},
                                                            {"gpt2", "GPT2LMHeadModel"},
                                                            {"gpt_neox", "GPTNeoXForCausalLM"},
                                                            {"gptj", "GPTJForCausalLM"},
                                                            {"llama", "LlamaForCausalLM"},
                                                            {"mistral", "MistralForCausalLM"},
                                                            {"opt", "OPTForCausalLM"},
                                                            {"phi", "PhiForCausalLM"},
                                                            {"qwen2", "Qwen2ForCausalLM"},
                                                            {"qwen3", "Qwen3ForCausalLM"}};

}  // namespace

struct ModelConfig::State {
  State(nlohmann::json config, const std::string& where, nlohmann::json generating)
      : document(std::move(config)), keys(document, where), generation(std::move(generating)) {}

  const nlohmann::json document;
  const JsonObject keys;
  const nlohmann::json generation;  // generation_config.json; null if there is none
};

ModelConfig ModelConfig::open(const std::string& given) {
  const std::string folder = hub::model_folder(given, hub::ModelUse::kConfig);
  const std::string path = (fs::path(folder) / "config.json").string();
  nlohmann::json generation;
  nlohmann::json document = read_json_file(path, kFolder);
  const fs::path generating = fs::path(folder) / "generation_config.json";
  if (fs::exists(generating)) generation = read_json_file(generating.string(), kFolder);
  return ModelConfig(std::make_shared<State>(std::move(document), path, std::move(generation)));
}

ModelConfig ModelConfig::parse(const std::string& text, const std::string& where) {
  nlohmann::json document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return ModelConfig(std::make_shared<State>(std::move(document), where, nullptr));
}

const std::string& ModelConfig::where() const { return state_->keys.where(); }
const JsonObject& ModelConfig::keys() const { return state_->keys; }
std::string ModelConfig::model_type() const { return keys().text("model_type"); }
std::string ModelConfig::dtype() const {
  return keys().text("dtype", keys().text("torch_dtype", ""));
}

std::vector<int64_t> ModelConfig::end_tokens() const {
  if (state_->generation.is_object()) {
    const JsonObject generation(state_->generation, "generation_config.json");
    if (generation.has("eos_token_id")) return generation.integers("eos_token_id");
  }
  return keys().integers("eos_token_id");
}

std::string ModelConfig::generation_to_json() const {
  return state_->generation.is_null() ? "" : state_->generation.dump(2) + "\n";
}

std::string ModelConfig::to_json(const std::string& dtype) const {
  nlohmann::json document = state_->document;
  if (!dtype.empty()) {
    document.erase("torch_dtype");
    document["dtype"] = dtype;
  }
  if (!keys().has("architectures")) {
    const std::string type = model_type();
    for (const auto& [known, name] : kClasses) {
      if (type == known) document["architectures"] = {name};
    }
  }
  return document.dump(2) + "\n";
}

}  // namespace coupler
