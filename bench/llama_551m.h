// A LLaMA of 551 million parameters, for the benchmarks of quantized and of divided weights. None
// of it fits a processor's cache, so a token takes as long as reading the weights.
#pragma once

#include <coupler/model_config.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace coupler::bench {

inline constexpr const char* kLlama551M = R"({
  "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000,
  "hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 16,
  "num_attention_heads": 12, "num_key_value_heads": 12, "max_position_embeddings": 2048,
  "tie_word_embeddings": false, "rms_norm_eps": 1e-5, "eos_token_id": 2, "bos_token_id": 1})";

// Makes the folder and its config.json, and opens that.
inline ModelConfig make_llama_551m(const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << kLlama551M;
  return ModelConfig::open(folder);
}

}  // namespace coupler::bench
