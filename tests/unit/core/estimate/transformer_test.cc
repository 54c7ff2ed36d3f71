// Numbers of parameters from the models' cards, or counted in their published weights.
#include "estimate/transformer.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <string>

namespace coupler::estimate {
namespace {

uint64_t count(const std::string& config) {
  uint64_t result = 0;
  for (const LoggedParameter& p : transformer_of(config, "config.json").parameters) {
    result += p.numel();
  }
  return result;
}

TEST(Transformer, PublishedModels_HaveTheirPublishedSizes) {
  EXPECT_EQ(count(R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
                      "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000})"),
            6'738'415'616u);
  EXPECT_EQ(count(R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
                      "num_attention_heads": 32, "num_key_value_heads": 8,
                      "num_hidden_layers": 32, "vocab_size": 128256})"),
            8'030'261'248u);
  EXPECT_EQ(count(R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
                      "num_attention_heads": 32, "num_key_value_heads": 8,
                      "num_hidden_layers": 32, "vocab_size": 32000})"),
            7'241'732'096u);
  EXPECT_EQ(count(R"({"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
                      "num_attention_heads": 14, "num_key_value_heads": 2,
                      "num_hidden_layers": 24, "vocab_size": 151936,
                      "tie_word_embeddings": true})"),
            494'032'768u);
  EXPECT_EQ(count(R"({"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384,
                      "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
                      "num_hidden_layers": 18, "vocab_size": 256000})"),
            2'506'172'416u);
  EXPECT_EQ(count(R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_positions": 1024,
                      "vocab_size": 50257, "n_inner": null})"),
            124'439'808u);
  EXPECT_EQ(count(R"({"model_type": "gptj", "n_embd": 4096, "n_layer": 28, "vocab_size": 50400})"),
            6'050'882'784u);
  EXPECT_EQ(count(R"({"model_type": "gpt_neox", "hidden_size": 512, "intermediate_size": 2048,
                      "num_hidden_layers": 6, "vocab_size": 50304})"),
            70'426'624u);
  EXPECT_EQ(count(R"({"model_type": "bert", "hidden_size": 768, "intermediate_size": 3072,
                      "num_hidden_layers": 12, "vocab_size": 30522,
                      "max_position_embeddings": 512, "type_vocab_size": 2})"),
            109'514'298u);
  EXPECT_EQ(count(R"({"model_type": "roberta", "hidden_size": 768, "intermediate_size": 3072,
                      "num_hidden_layers": 12, "vocab_size": 50265,
                      "max_position_embeddings": 514, "type_vocab_size": 1})"),
            124'697'433u);
}

// What config.json leaves out is the architecture's own default.
TEST(Transformer, KeyHeadsAndHeadSize_HaveTheDefaultsOfTheirArchitecture) {
  EXPECT_EQ(count(R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
                      "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000})"),
            7'241'732'096u);
  EXPECT_EQ(count(R"({"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576,
                      "num_attention_heads": 16, "num_hidden_layers": 28, "vocab_size": 256000})"),
            8'537'680'896u);
  EXPECT_EQ(count(R"({"model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216,
                      "num_attention_heads": 8, "num_hidden_layers": 26, "vocab_size": 256000})"),
            2'614'341'888u);
  EXPECT_EQ(count(R"({"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
                      "num_attention_heads": 16, "num_key_value_heads": 8,
                      "num_hidden_layers": 28, "vocab_size": 151936,
                      "tie_word_embeddings": true})"),
            596'049'920u);
  // Null means as many as heads.
  EXPECT_EQ(count(R"({"model_type": "mistral", "hidden_size": 64, "intermediate_size": 64,
                      "num_attention_heads": 4, "num_key_value_heads": null,
                      "num_hidden_layers": 1, "vocab_size": 10})"),
            count(R"({"model_type": "mistral", "hidden_size": 64, "intermediate_size": 64,
                      "num_attention_heads": 4, "num_key_value_heads": 4,
                      "num_hidden_layers": 1, "vocab_size": 10})"));
}

std::string config_refusal(const std::string& config) {
  try {
    transformer_of(config, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Transformer, UnknownType_ListsTheKnownOnes) {
  const std::string said = config_refusal(R"({"model_type": "mamba"})");
  EXPECT_NE(said.find("model_type is 'mamba'; known are bert, gemma, gemma2"), std::string::npos)
      << said;
}

TEST(Transformer, WrongConfigurations_NameTheKey) {
  EXPECT_NE(config_refusal("no json").find("not a JSON object"), std::string::npos);
  EXPECT_NE(config_refusal(R"({"model_type": "llama"})").find("'hidden_size' is missing"),
            std::string::npos);
  EXPECT_NE(config_refusal(R"({"model_type": "gpt2", "n_embd": -3})")
                .find("'n_embd' must be a whole number above 0, not -3"),
            std::string::npos);
}

}  // namespace
}  // namespace coupler::estimate
