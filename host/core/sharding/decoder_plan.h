// The tensor-parallel plan of a decoder-only language model: attention is divided by heads, the MLP
// by its inner features. Shared by the models themselves and by estimates from a config.json. Plain
// data and a pure function; [any-thread].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sharding/tensor_plan.h"

namespace coupler::sharding {

// The layers by their names, as checkpoints have them, by default LLaMA's. Empty: the model has no
// such module.
struct DecoderLayers {
  std::string base = "model", layers = "layers";  // what holds the blocks, and their list
  std::string embedding = "embed_tokens", head = "lm_head";
  std::string attention = "self_attn", mlp = "mlp";  // mlp empty: its layers belong to the block
  std::string query = "q_proj", key = "k_proj", value = "v_proj", output = "o_proj";
  std::string fused = {};      // one weight for queries, keys and values, instead of three
  bool fused_by_head = false;  // its outputs are those of the first head, then of the second, …
  std::string query_norm = {}, key_norm = {};  // of each head
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
};

// What a division must keep together, or share out evenly.
struct DecoderSizes {
  int64_t vocabulary = 0, head_size = 0, key_heads = 0;
};

// A line of the plan: a pattern, a word for the style, and features that must stay together.
struct PlanRule {
  std::string pattern, style;
  int64_t multiple = 1;
};

// For groups of this many ranks. The vocabulary is divided only if it divides: 50,257 tokens do
// not.
std::vector<PlanRule> plan_of_decoder(const DecoderLayers& layers, const DecoderSizes& sizes,
                                      int ranks);

// A model's own rule as a line; prefix: the path of the module that has it. Throws Error(kConfig)
// for an unknown style.
PlannedLayers planned_layers(const PlanRule& rule, const std::string& prefix = {});

}  // namespace coupler::sharding
