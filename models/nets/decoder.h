// DecoderDescription: what distinguishes one decoder-only language model from another. config.json
// selects its values (nets/architectures.cc), and one module computes them all. Used by one thread.
#pragma once

#include <coupler/language_model.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nets/layers.h"
#include "sharding/decoder_plan.h"

namespace coupler {

enum class NormKind {
  kLayer,      // torch's LayerNorm
  kRms,        // LLaMA's: divided by the root of the mean square
  kRmsOffset,  // Gemma's: likewise, with 1 added to the weight
};

// How a block combines attention and MLP with what bypasses them.
enum class Residual {
  kSequential,  // x + attention(norm(x)), then likewise with the MLP
  kParallel,    // x + attention(norm(x)) + mlp(norm(x)), with one norm or two
  kNormLast,    // norm(x + attention(x)), then likewise with the MLP
};

// The names of modules: of those that plans divide, and of the others, with the same rules.
struct DecoderNames : sharding::DecoderLayers {
  std::string positions;
  std::string project_in, project_out;  // between embeddings and blocks of another width
  std::string attention_norm = "input_layernorm", mlp_norm = "post_attention_layernorm";
  std::string after_attention, after_mlp;  // norms of outputs, before they are added
  std::string final_norm = "norm";
};

struct DecoderDescription {
  // The classes of transformers, by which device maps and units name modules. Those of attention,
  // MLP and norms start with family.
  std::string family = "Llama", block_class = "LlamaDecoderLayer", model_class = "LlamaForCausalLM";
  DecoderNames names;

  int64_t vocabulary = 0, context = 0;
  int64_t width = 0, embedding_width = 0, inner = 0;
  int64_t layers = 0, heads = 0, key_heads = 0, head = 0;  // head: the size of one

  int64_t padding_token = -1;   // whose embedding gets no gradient; -1: none
  int64_t position_offset = 0;  // of learned positions
  double embedding_scale = 1;   // rounded to the weights' dtype
  int64_t rotary = 0;           // coordinates of a head that are rotated; 0: no rotary positions
  RotaryStyle rotary_style = RotaryStyle::kHalf;
  RotaryBase rotary_base;
  std::optional<RotaryBase> window_rotary_base;  // of layers with a window, if it differs

  NormKind norm = NormKind::kRms;
  bool norm_weights = true;
  double epsilon = 1e-5;
  Residual residual = Residual::kSequential;
  Activation activation = nullptr;

  bool query_bias = false, output_bias = false, mlp_bias = false, head_bias = false;
  bool transposed = false;     // linear layers of blocks are Conv1D: weights are [in, out]
  AttentionOptions attention;  // its window is that of the layers in `windowed`
  std::vector<bool> windowed;  // by layer
  bool tied = false;           // the head's weight is the embedding's
  double logit_cap = 0;        // logits stay within ±logit_cap; 0: unbounded
};

// How the model's layers are divided over the ranks of a tensor group.
TensorPlan tensor_plan_of(const DecoderDescription& description, int ranks);

std::shared_ptr<LanguageModel> make_decoder_model(const DecoderDescription& description);

}  // namespace coupler
