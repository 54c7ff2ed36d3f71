// The architectures that make_language_model supports: how each config.json describes a decoder.
// Keys and defaults are those of transformers 5 (models/*/configuration_*.py).
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/text.h"
#include "json_file.h"
#include "nets/decoder.h"

namespace coupler {
namespace {

// What config.json calls a decoder's sizes, and the values of keys that it lacks. inner: 0 means
// four times the width.
struct SizeKeys {
  const char *width, *layers, *heads, *context, *inner;
};
constexpr SizeKeys kOlderKeys = {"n_embd", "n_layer", "n_head", "n_positions", "n_inner"};
constexpr SizeKeys kKeys = {"hidden_size", "num_hidden_layers", "num_attention_heads",
                            "max_position_embeddings", "intermediate_size"};
struct Sizes {
  int64_t vocabulary, context, width, layers, heads, inner;
};

void read_sizes(DecoderDescription& d, const JsonObject& keys, const SizeKeys& names,
                const Sizes& otherwise) {
  d.vocabulary = keys.size("vocab_size", otherwise.vocabulary);
  d.context = keys.size(names.context, otherwise.context);
  d.width = d.embedding_width = keys.size(names.width, otherwise.width);
  d.layers = keys.size(names.layers, otherwise.layers);
  d.heads = d.key_heads = keys.size(names.heads, otherwise.heads);
  d.inner = keys.size(names.inner, otherwise.inner > 0 ? otherwise.inner : 4 * d.width);
  if (!keys.has("head_dim") && d.width % d.heads != 0)
    keys.refuse(names.heads, fmt::format("does not divide '{}'", names.width),
                "use the config.json of the model");
  d.head = std::max<int64_t>(d.width / d.heads, 1);
}

// How many coordinates of each head are rotated.
void rotate(DecoderDescription& d, const JsonObject& keys, const char* key, int64_t coordinates) {
  if (coordinates < 2 || coordinates % 2 != 0 || coordinates > d.head)
    keys.refuse(key,
                fmt::format("makes {} coordinates of a head rotate, which must be even, at least 2 "
                            "and no more than the head's {}",
                            coordinates, d.head),
                "use the config.json of the model");
  d.rotary = coordinates;
}

std::optional<JsonObject> rope_of(const JsonObject& keys) {
  auto rope = keys.maybe_object("rope_parameters");
  return rope ? rope : keys.maybe_object("rope_scaling");
}

void refuse_flag(const JsonObject& keys, const char* key) {
  if (keys.flag(key, false))
    throw Error(ErrorCode::kUnsupported, keys.where() + ": '" + key + "' is not supported",
                {.subject = key, .hint = "use a model without it"});
}

void read_window(DecoderDescription& d, const JsonObject& keys) {
  d.attention.window = keys.has("sliding_window") ? keys.size("sliding_window") : 0;
}

// Which layers have a window: "layer_types", or what `otherwise` says of a layer's index.
template <class Rule>
void read_windows(DecoderDescription& d, const JsonObject& keys, const Rule& otherwise) {
  read_window(d, keys);
  const std::vector<std::string> types = keys.texts("layer_types");
  if (!types.empty() && types.size() != static_cast<size_t>(d.layers))
    keys.refuse("layer_types", fmt::format("has {} entries for {} layers", types.size(), d.layers),
                "use the config.json of the model");
  for (int64_t layer = 0; layer < d.layers; ++layer) {
    bool windowed = otherwise(layer);
    if (!types.empty()) {
      const std::string& type = types[static_cast<size_t>(layer)];
      windowed = type == "sliding_attention";
      if (!windowed && type != "full_attention")
        keys.refuse("layer_types", "has '" + for_message(type) + "'",
                    "use sliding_attention or full_attention");
    }
    d.windowed.push_back(windowed && d.attention.window > 0);
  }
}

// The part of GPT-2 and GPT-J that they share.
DecoderDescription describe_gpt(const JsonObject& keys, const char* family, const Sizes& sizes) {
  DecoderDescription d;
  d.family = family;
  d.block_class = d.family + "Block";
  read_sizes(d, keys, kOlderKeys, sizes);
  d.names.base = "transformer";
  d.names.embedding = "wte";
  d.names.layers = "h";
  d.names.final_norm = "ln_f";
  d.names.attention = "attn";
  d.names.attention_norm = "ln_1";
  d.names.gate = "";
  d.norm = NormKind::kLayer;
  d.epsilon = keys.number("layer_norm_epsilon", 1e-5);
  d.activation = activation_of(keys, "activation_function", "gelu_new");
  d.mlp_bias = true;
  return d;
}

DecoderDescription describe_gpt2(const JsonObject& keys) {
  DecoderDescription d = describe_gpt(keys, "GPT2", {50257, 1024, 768, 12, 12, 0});
  d.model_class = "GPT2LMHeadModel";
  d.names.positions = "wpe";
  d.names.mlp_norm = "ln_2";
  d.names.fused = "c_attn";
  d.names.output = "c_proj";
  d.names.up = "c_fc";
  d.names.down = "c_proj";
  d.transposed = true;
  d.query_bias = d.output_bias = true;
  d.tied = keys.flag("tie_word_embeddings", true);
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
    refuse_flag(keys, key);
  return d;
}

DecoderDescription describe_gptj(const JsonObject& keys) {
  DecoderDescription d = describe_gpt(keys, "GPTJ", {50400, 2048, 4096, 28, 16, 0});
  d.model_class = "GPTJForCausalLM";
  d.names.mlp_norm = "";
  d.names.output = "out_proj";
  d.names.up = "fc_in";
  d.names.down = "fc_out";
  d.residual = Residual::kParallel;
  d.rotary_style = RotaryStyle::kInterleaved;
  d.head_bias = true;
  d.tied = keys.flag("tie_word_embeddings", false);
  rotate(d, keys, "rotary_dim", keys.size("rotary_dim", 64));
  return d;
}

// "num_key_value_heads": as many as queries have if it is null, and `otherwise` if it is missing.
void read_key_heads(DecoderDescription& d, const JsonObject& keys, int64_t otherwise) {
  const bool null = keys.json().contains("num_key_value_heads");
  d.key_heads = keys.size("num_key_value_heads", null ? d.heads : otherwise);
  if (d.heads % d.key_heads != 0)
    keys.refuse("num_key_value_heads", "does not divide 'num_attention_heads'",
                "use the config.json of the model");
}

// What LLaMA and the architectures that grew out of it share. key_heads, head: if config.json names
// none; 0: as many as queries have, and the width divided by their number.
DecoderDescription describe_llama_like(const JsonObject& keys, const char* family,
                                       const Sizes& sizes, int64_t key_heads = 0,
                                       int64_t head = 0) {
  DecoderDescription d;
  d.family = family;
  d.block_class = d.family + "DecoderLayer";
  d.model_class = d.family + "ForCausalLM";
  read_sizes(d, keys, kKeys, sizes);
  read_key_heads(d, keys, key_heads > 0 ? key_heads : d.heads);
  d.head = keys.size("head_dim", head > 0 ? head : d.head);
  rotate(d, keys, "head_dim", d.head);
  d.rotary_base = rotary_base_of(rope_of(keys), keys.number("rope_theta", 10000));
  d.epsilon = keys.number("rms_norm_eps", 1e-6);
  d.activation = activation_of(keys, "hidden_act", "silu");
  d.query_bias = d.output_bias = keys.flag("attention_bias", false);
  d.tied = keys.flag("tie_word_embeddings", false);
  return d;
}

DecoderDescription describe_llama(const JsonObject& keys) {
  DecoderDescription d = describe_llama_like(keys, "Llama", {32000, 2048, 4096, 32, 32, 11008});
  d.mlp_bias = keys.flag("mlp_bias", false);
  return d;
}

DecoderDescription describe_mistral(const JsonObject& keys) {
  DecoderDescription d =
      describe_llama_like(keys, "Mistral", {32000, 131072, 4096, 32, 32, 14336}, 8);
  d.query_bias = d.output_bias = false;
  read_window(d, keys);
  d.windowed.assign(static_cast<size_t>(d.layers), d.attention.window > 0);
  return d;
}

DecoderDescription describe_qwen(const JsonObject& keys, const char* family, int64_t head) {
  DecoderDescription d =
      describe_llama_like(keys, family, {151936, 32768, 4096, 32, 32, 22016}, 0, head);
  const int64_t full = keys.integer("max_window_layers", 28);
  const bool windows = keys.flag("use_sliding_window", false);
  read_windows(d, keys, [&](int64_t layer) { return layer >= full; });
  if (!windows) d.windowed.clear();
  return d;
}

DecoderDescription describe_qwen2(const JsonObject& keys) {
  DecoderDescription d = describe_qwen(keys, "Qwen2", 0);
  d.query_bias = true;
  d.output_bias = false;
  return d;
}

DecoderDescription describe_qwen3(const JsonObject& keys) {
  DecoderDescription d = describe_qwen(keys, "Qwen3", 128);
  d.names.query_norm = "q_norm";
  d.names.key_norm = "k_norm";
  return d;
}

// What the three Gemmas share.
DecoderDescription describe_gemma_like(const JsonObject& keys, const char* family,
                                       const Sizes& sizes, int64_t key_heads) {
  DecoderDescription d = describe_llama_like(keys, family, sizes, key_heads, 256);
  refuse_flag(keys, "use_bidirectional_attention");
  d.norm = NormKind::kRmsOffset;
  d.embedding_scale = std::sqrt(static_cast<double>(d.width));
  d.tied = keys.flag("tie_word_embeddings", true);
  d.padding_token = 0;
  return d;
}

DecoderDescription describe_gemma(const JsonObject& keys) {
  DecoderDescription d =
      describe_gemma_like(keys, "Gemma", {256000, 8192, 3072, 28, 16, 24576}, 16);
  // "gelu" in the published files means the approximation; transformers reads it so, too.
  if (keys.text("hidden_act", "gelu") == "gelu")
    d.activation = activation_of(keys, "hidden_activation", "gelu_pytorch_tanh");
  return d;
}

// Gemma 2 and 3: norms of outputs, layers with and without a window.
void describe_later_gemma(DecoderDescription& d, const JsonObject& keys, int64_t pattern) {
  d.names.after_attention = "post_attention_layernorm";
  d.names.mlp_norm = "pre_feedforward_layernorm";
  d.names.after_mlp = "post_feedforward_layernorm";
  d.activation = activation_of(keys, "hidden_activation", "gelu_pytorch_tanh");
  const double scalar = keys.number("query_pre_attn_scalar", 256);
  if (!(scalar > 0))
    keys.refuse("query_pre_attn_scalar", "must be above 0", "use the config.json of the model");
  d.attention.scale = 1 / std::sqrt(scalar);
  read_windows(d, keys, [=](int64_t layer) { return (layer + 1) % pattern != 0; });
}

// A missing cap has the default; null means none.
double cap_of(const JsonObject& keys, const char* key, double otherwise) {
  const double cap = keys.number(key, keys.json().contains(key) ? 0 : otherwise);
  if (!(cap >= 0)) keys.refuse(key, "must not be negative", "use the config.json of the model");
  return cap;
}

DecoderDescription describe_gemma2(const JsonObject& keys) {
  DecoderDescription d = describe_gemma_like(keys, "Gemma2", {256000, 8192, 2304, 26, 8, 9216}, 4);
  describe_later_gemma(d, keys, 2);
  d.attention.cap = cap_of(keys, "attn_logit_softcapping", 50);
  d.logit_cap = cap_of(keys, "final_logit_softcapping", 30);
  return d;
}

// Rotary positions of layers with and without a window differ. Older files name two bases, and
// scale only those of layers without; newer ones have "rope_parameters" for each kind.
void read_two_bases(DecoderDescription& d, const JsonObject& keys) {
  const auto both = keys.maybe_object("rope_parameters");
  const auto of = [&](const char* kind) {
    return both ? both->maybe_object(kind) : std::optional<JsonObject>();
  };
  const auto full = of("full_attention");
  d.rotary_base = rotary_base_of(full ? full : keys.maybe_object("rope_scaling"),
                                 keys.number("rope_theta", 1000000));
  d.window_rotary_base =
      rotary_base_of(of("sliding_attention"), keys.number("rope_local_base_freq", 10000));
}

DecoderDescription describe_gemma3(const JsonObject& keys) {
  DecoderDescription d =
      describe_gemma_like(keys, "Gemma3", {262208, 131072, 2304, 26, 8, 9216}, 4);
  describe_later_gemma(d, keys, keys.size("sliding_window_pattern", 6));
  d.names.query_norm = "q_norm";
  d.names.key_norm = "k_norm";
  d.attention.cap = cap_of(keys, "attn_logit_softcapping", 0);
  d.logit_cap = cap_of(keys, "final_logit_softcapping", 0);
  read_two_bases(d, keys);
  return d;
}

// Rotates a part of each head; older files name it outside of "rope_parameters".
void rotate_part(DecoderDescription& d, const JsonObject& keys, const char* older_part, double part,
                 const char* older_base) {
  const auto rope = rope_of(keys);
  part = keys.number(older_part, part);
  if (rope) part = rope->number("partial_rotary_factor", part);
  if (!(part > 0 && part <= 1))
    keys.refuse(older_part, "must be above 0 and at most 1", "use the config.json of the model");
  rotate(d, keys, older_part, static_cast<int64_t>(static_cast<double>(d.head) * part));
  d.rotary_base = rotary_base_of(rope, keys.number(older_base, 10000));
}

DecoderDescription describe_gpt_neox(const JsonObject& keys) {
  DecoderDescription d;
  d.family = "GPTNeoX";
  d.block_class = "GPTNeoXLayer";
  d.model_class = "GPTNeoXForCausalLM";
  read_sizes(d, keys, kKeys, {50432, 2048, 6144, 44, 64, 24576});
  d.names.base = "gpt_neox";
  d.names.embedding = "embed_in";
  d.names.final_norm = "final_layer_norm";
  d.names.head = "embed_out";
  d.names.attention = "attention";
  d.names.fused = "query_key_value";
  d.names.output = "dense";
  d.names.gate = "";
  d.names.up = "dense_h_to_4h";
  d.names.down = "dense_4h_to_h";
  d.names.fused_by_head = true;
  d.norm = NormKind::kLayer;
  d.epsilon = keys.number("layer_norm_eps", 1e-5);
  d.residual =
      keys.flag("use_parallel_residual", true) ? Residual::kParallel : Residual::kSequential;
  d.activation = activation_of(keys, "hidden_act", "gelu");
  d.query_bias = d.output_bias = keys.flag("attention_bias", true);
  d.mlp_bias = true;
  d.tied = keys.flag("tie_word_embeddings", false);
  rotate_part(d, keys, "rotary_pct", 0.25, "rotary_emb_base");
  return d;
}

DecoderDescription describe_phi(const JsonObject& keys) {
  DecoderDescription d;
  d.family = "Phi";
  d.block_class = "PhiDecoderLayer";
  d.model_class = "PhiForCausalLM";
  read_sizes(d, keys, kKeys, {51200, 2048, 2048, 24, 32, 8192});
  read_key_heads(d, keys, d.heads);
  d.names.final_norm = "final_layernorm";
  d.names.mlp_norm = "";
  d.names.output = "dense";
  d.names.gate = "";
  d.names.up = "fc1";
  d.names.down = "fc2";
  if (keys.flag("qk_layernorm", false)) {
    d.names.query_norm = "q_layernorm";
    d.names.key_norm = "k_layernorm";
  }
  d.norm = NormKind::kLayer;
  d.epsilon = keys.number("layer_norm_eps", 1e-5);
  d.residual = Residual::kParallel;
  d.activation = activation_of(keys, "hidden_act", "gelu_new");
  d.query_bias = d.output_bias = d.mlp_bias = d.head_bias = true;
  d.tied = keys.flag("tie_word_embeddings", false);
  rotate_part(d, keys, "partial_rotary_factor", 0.5, "rope_theta");
  return d;
}

DecoderDescription describe_opt(const JsonObject& keys) {
  DecoderDescription d;
  d.family = "OPT";
  d.block_class = "OPTDecoderLayer";
  d.model_class = "OPTForCausalLM";
  SizeKeys names = kKeys;
  names.inner = "ffn_dim";
  read_sizes(d, keys, names, {50272, 2048, 768, 12, 12, 3072});
  d.embedding_width = keys.size("word_embed_proj_dim", d.width);
  const bool first = keys.flag("do_layer_norm_before", true);
  d.names.base = "model.decoder";
  d.names.positions = "embed_positions";
  if (d.embedding_width != d.width) {
    d.names.project_in = "project_in";
    d.names.project_out = "project_out";
  }
  d.names.final_norm =
      first && !keys.flag("_remove_final_layer_norm", false) ? "final_layer_norm" : "";
  d.names.attention_norm = "self_attn_layer_norm";
  d.names.mlp_norm = "final_layer_norm";
  d.names.output = "out_proj";
  d.names.mlp = d.names.gate = "";
  d.names.up = "fc1";
  d.names.down = "fc2";
  d.norm = NormKind::kLayer;
  d.norm_weights = keys.flag("layer_norm_elementwise_affine", true);
  d.residual = first ? Residual::kSequential : Residual::kNormLast;
  d.activation = activation_of(keys, "activation_function", "relu");
  d.query_bias = d.output_bias = d.mlp_bias = keys.flag("enable_bias", true);
  d.position_offset = 2;
  d.padding_token = 1;
  d.tied = keys.flag("tie_word_embeddings", true);
  return d;
}

struct Architecture {
  const char* type;  // config.json's model_type
  DecoderDescription (*describe)(const JsonObject& keys);
};
constexpr Architecture kArchitectures[] = {
    {"gemma", describe_gemma}, {"gemma2", describe_gemma2},     {"gemma3_text", describe_gemma3},
    {"gpt2", describe_gpt2},   {"gpt_neox", describe_gpt_neox}, {"gptj", describe_gptj},
    {"llama", describe_llama}, {"mistral", describe_mistral},   {"opt", describe_opt},
    {"phi", describe_phi},     {"qwen2", describe_qwen2},       {"qwen3", describe_qwen3}};

}  // namespace

std::shared_ptr<LanguageModel> make_language_model(const ModelConfig& config) {
  const std::string type = config.model_type();
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (type == architecture.type) {
      DecoderDescription description = architecture.describe(config.keys());
      // transformers gives these architectures' embeddings a padding token, whose row gets no
      // gradient.
      const bool null = config.keys().json().contains("pad_token_id");
      const int64_t given =
          config.keys().integer("pad_token_id", null ? -1 : description.padding_token);
      const bool none = type.starts_with("gpt") || given >= description.vocabulary;
      description.padding_token = none ? -1 : std::max<int64_t>(given, -1);
      return make_decoder_model(description);
    }
    known += (known.empty() ? "" : ", ") + std::string(architecture.type);
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: architecture '{}' is not supported; supported: {}", config.where(),
                          for_message(type), known),
              {.subject = "model_type",
               .hint = "use a checkpoint of one of these; for 'bert', use SentenceEncoder"});
}

}  // namespace coupler
