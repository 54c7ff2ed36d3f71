#include "estimate/transformer.h"

#include <coupler/distributed_backend.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "sharding/decoder_plan.h"

namespace coupler::estimate {
namespace {

using nlohmann::json;

int64_t signed_of(uint64_t number) { return static_cast<int64_t>(number); }

// Reads a config.json and collects the parameters it implies.
class Builder {
 public:
  Builder(const json& config, const std::string& file) : config_(config), file_(file) {}

  uint64_t number(const char* key) const {
    const auto found = config_.find(key);
    if (found == config_.end() || !found->is_number_unsigned() || *found == 0 ||
        found->get<uint64_t>() > (uint64_t{1} << 40)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: '{}' {}", file_, key,
                              found == config_.end()
                                  ? "is missing"
                                  : "must be a whole number above 0, not " + found->dump()),
                  {.subject = key, .hint = "give a config.json as save_pretrained writes it"});
    }
    return found->get<uint64_t>();
  }
  uint64_t number(const char* key, uint64_t otherwise) const {
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? otherwise : number(key);
  }
  bool has(const char* key) const { return config_.contains(key); }
  bool flag(const char* key, bool otherwise) const {
    const auto found = config_.find(key);
    return found != config_.end() && found->is_boolean() ? found->get<bool>() : otherwise;
  }

  void add(const std::string& name, std::vector<uint64_t> sizes) {
    parameters_.push_back({.name = name, .sizes = std::move(sizes), .dtype = DB_F32});
  }
  // y = x W + b, W as [out, in].
  void linear(const std::string& name, uint64_t out, uint64_t in, bool bias) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  }
  // Likewise, with W as [in, out].
  void conv1d(const std::string& name, uint64_t in, uint64_t out) {
    add(name + ".weight", {in, out});
    add(name + ".bias", {out});
    types_[name] = "Conv1D";
  }
  void embedding(const std::string& name, uint64_t words, uint64_t width) {
    add(name + ".weight", {words, width});
    types_[name] = "Embedding";
  }
  void norm(const std::string& name, uint64_t width, bool bias = true) {
    add(name + ".weight", {width});
    if (bias) add(name + ".bias", {width});
  }
  // How the layers are divided over a tensor group; without it, they are not.
  void decoder(sharding::DecoderLayers layers, uint64_t words, uint64_t head_size,
               uint64_t key_heads) {
    decoder_ = std::move(layers);
    decoder_sizes_ = {.vocabulary = signed_of(words),
                      .head_size = signed_of(std::max<uint64_t>(head_size, 1)),
                      .key_heads = signed_of(key_heads)};
  }

  LoggedModel model(const std::string& name) {
    LoggedModel result = model_of_parameters(name, std::move(parameters_));
    for (LoggedModule& module : result.modules) {
      const auto type = types_.find(module.name);
      if (type != types_.end()) module.type = type->second;
    }
    return result;
  }
  // Empty if the model has no plan.
  std::vector<sharding::PlanRule> plan(int ranks) const {
    if (!decoder_) return {};
    return sharding::plan_of_decoder(*decoder_, decoder_sizes_, ranks);
  }
  // Empty if the model has none.
  LayerChain chain() const {
    if (!decoder_) return {};
    const std::string base = decoder_->base + ".", block = base + decoder_->layers + ".";
    std::vector<size_t> first, last;
    LayerChain blocks;
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const std::string& name = parameters_[p].name;
      if (name.starts_with(block)) {
        const size_t number = std::stoul(name.substr(block.size()));
        blocks.resize(std::max(blocks.size(), number + 1));
        blocks[number].push_back(p);
        continue;
      }
      const std::string module = name.substr(0, name.rfind('.'));
      const auto type = types_.find(module);
      const bool embeds =
          (type != types_.end() && type->second == "Embedding") || module == base + "project_in";
      if (embeds) first.push_back(p);
      const bool is_tied = decoder_->head.empty() && module == base + decoder_->embedding;
      if (!embeds || is_tied) last.push_back(p);
    }
    LayerChain result = std::move(blocks);
    result.insert(result.begin(), std::move(first));
    result.push_back(std::move(last));
    return result;
  }

 private:
  const json& config_;
  const std::string& file_;
  std::vector<LoggedParameter> parameters_;
  std::map<std::string, std::string> types_;  // of modules, if plans ask for them
  std::optional<sharding::DecoderLayers> decoder_;
  sharding::DecoderSizes decoder_sizes_;
};

// modeling_llama.py, and how modeling_mistral.py, modeling_qwen2.py, modeling_qwen3.py and
// modeling_gemma.py differ from it; modeling_gemma2.py and modeling_gemma3.py norm what blocks add,
// too.
struct LlamaKind {
  bool attention_bias = false;
  bool head_norms = false;
  bool ties = false;
  bool output_norms = false;
  // If config.json lacks them; 0: as many key heads as heads, and heads that share the width.
  uint64_t key_heads = 0;
  uint64_t head_size = 0;
};

void llama(Builder& b, const LlamaKind& kind) {
  const uint64_t width = b.number("hidden_size"), heads = b.number("num_attention_heads");
  const uint64_t size = b.number("head_dim", kind.head_size > 0 ? kind.head_size : width / heads);
  const bool all_heads = kind.key_heads == 0 || b.has("num_key_value_heads");  // null means all
  const uint64_t keys = b.number("num_key_value_heads", all_heads ? heads : kind.key_heads);
  const uint64_t inner = b.number("intermediate_size"), words = b.number("vocab_size");
  const bool bias = b.flag("attention_bias", kind.attention_bias);
  const bool mlp_bias = b.flag("mlp_bias", false);
  const bool out_bias = !kind.attention_bias && bias;  // qwen2 has none at o_proj
  b.embedding("model.embed_tokens", words, width);
  for (uint64_t i = 0; i < b.number("num_hidden_layers"); ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    b.linear(layer + "self_attn.q_proj", heads * size, width, bias);
    b.linear(layer + "self_attn.k_proj", keys * size, width, bias);
    b.linear(layer + "self_attn.v_proj", keys * size, width, bias);
    b.linear(layer + "self_attn.o_proj", width, heads * size, out_bias);
    if (kind.head_norms) {
      b.norm(layer + "self_attn.q_norm", size, false);
      b.norm(layer + "self_attn.k_norm", size, false);
    }
    b.linear(layer + "mlp.gate_proj", inner, width, mlp_bias);
    b.linear(layer + "mlp.up_proj", inner, width, mlp_bias);
    b.linear(layer + "mlp.down_proj", width, inner, mlp_bias);
    b.norm(layer + "input_layernorm", width, false);
    b.norm(layer + "post_attention_layernorm", width, false);
    if (kind.output_norms) {
      b.norm(layer + "pre_feedforward_layernorm", width, false);
      b.norm(layer + "post_feedforward_layernorm", width, false);
    }
  }
  b.norm("model.norm", width, false);
  const bool tied = b.flag("tie_word_embeddings", kind.ties);
  if (!tied) b.linear("lm_head", words, width, false);
  b.decoder({.head = tied ? "" : "lm_head",
             .query_norm = kind.head_norms ? "q_norm" : "",
             .key_norm = kind.head_norms ? "k_norm" : ""},
            words, size, keys);
}

// modeling_gpt2.py; its Conv1D has weights as [in, out].
void gpt2(Builder& b) {
  const uint64_t width = b.number("n_embd"), inner = b.number("n_inner", 4 * width);
  const uint64_t words = b.number("vocab_size");
  b.embedding("transformer.wte", words, width);
  b.embedding("transformer.wpe", b.number("n_positions"), width);
  for (uint64_t i = 0; i < b.number("n_layer"); ++i) {
    const std::string layer = fmt::format("transformer.h.{}.", i);
    b.norm(layer + "ln_1", width);
    b.conv1d(layer + "attn.c_attn", width, 3 * width);
    b.conv1d(layer + "attn.c_proj", width, width);
    b.norm(layer + "ln_2", width);
    b.conv1d(layer + "mlp.c_fc", width, inner);
    b.conv1d(layer + "mlp.c_proj", inner, width);
  }
  b.norm("transformer.ln_f", width);
  const bool tied = b.flag("tie_word_embeddings", true);
  if (!tied) b.linear("lm_head", words, width, false);
  const uint64_t heads = b.number("n_head", 12);
  b.decoder({.base = "transformer",
             .layers = "h",
             .embedding = "wte",
             .head = tied ? "" : "lm_head",
             .attention = "attn",
             .output = "c_proj",
             .fused = "c_attn",
             .gate = "",
             .up = "c_fc",
             .down = "c_proj"},
            words, width / heads, heads);
}

// modeling_gptj.py
void gptj(Builder& b) {
  const uint64_t width = b.number("n_embd"), inner = b.number("n_inner", 4 * width);
  const uint64_t words = b.number("vocab_size");
  b.embedding("transformer.wte", words, width);
  for (uint64_t i = 0; i < b.number("n_layer"); ++i) {
    const std::string layer = fmt::format("transformer.h.{}.", i);
    b.norm(layer + "ln_1", width);
    for (const char* name : {"k_proj", "v_proj", "q_proj", "out_proj"}) {
      b.linear(layer + "attn." + name, width, width, false);
    }
    b.linear(layer + "mlp.fc_in", inner, width, true);
    b.linear(layer + "mlp.fc_out", width, inner, true);
  }
  b.norm("transformer.ln_f", width);
  b.linear("lm_head", words, width, true);
  const uint64_t heads = b.number("n_head", 16);
  b.decoder({.base = "transformer",
             .layers = "h",
             .embedding = "wte",
             .attention = "attn",
             .output = "out_proj",
             .gate = "",
             .up = "fc_in",
             .down = "fc_out"},
            words, width / heads, heads);
}

// modeling_gpt_neox.py
void gpt_neox(Builder& b) {
  const uint64_t width = b.number("hidden_size"), inner = b.number("intermediate_size");
  const uint64_t words = b.number("vocab_size");
  const bool bias = b.flag("attention_bias", true);
  b.embedding("gpt_neox.embed_in", words, width);
  for (uint64_t i = 0; i < b.number("num_hidden_layers"); ++i) {
    const std::string layer = fmt::format("gpt_neox.layers.{}.", i);
    b.norm(layer + "input_layernorm", width);
    b.norm(layer + "post_attention_layernorm", width);
    b.linear(layer + "attention.query_key_value", 3 * width, width, bias);
    b.linear(layer + "attention.dense", width, width, bias);
    b.linear(layer + "mlp.dense_h_to_4h", inner, width, true);
    b.linear(layer + "mlp.dense_4h_to_h", width, inner, true);
  }
  b.norm("gpt_neox.final_layer_norm", width);
  const bool tied = b.flag("tie_word_embeddings", false);
  if (!tied) b.linear("embed_out", words, width, false);
  const uint64_t heads = b.number("num_attention_heads", 64);
  b.decoder({.base = "gpt_neox",
             .embedding = "embed_in",
             .head = tied ? "" : "embed_out",
             .attention = "attention",
             .output = "dense",
             .fused = "query_key_value",
             .fused_by_head = true,
             .gate = "",
             .up = "dense_h_to_4h",
             .down = "dense_4h_to_h"},
            words, width / heads, heads);
}

// modeling_phi.py
void phi(Builder& b) {
  const uint64_t width = b.number("hidden_size"), inner = b.number("intermediate_size");
  const uint64_t heads = b.number("num_attention_heads"), size = width / heads;
  const uint64_t keys = b.number("num_key_value_heads", heads), words = b.number("vocab_size");
  b.embedding("model.embed_tokens", words, width);
  for (uint64_t i = 0; i < b.number("num_hidden_layers"); ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    b.linear(layer + "self_attn.q_proj", heads * size, width, true);
    b.linear(layer + "self_attn.k_proj", keys * size, width, true);
    b.linear(layer + "self_attn.v_proj", keys * size, width, true);
    b.linear(layer + "self_attn.dense", width, heads * size, true);
    if (b.flag("qk_layernorm", false)) {
      b.norm(layer + "self_attn.q_layernorm", size);
      b.norm(layer + "self_attn.k_layernorm", size);
    }
    b.linear(layer + "mlp.fc1", inner, width, true);
    b.linear(layer + "mlp.fc2", width, inner, true);
    b.norm(layer + "input_layernorm", width);
  }
  b.norm("model.final_layernorm", width);
  const bool tied = b.flag("tie_word_embeddings", false);
  if (tied) {
    b.add("lm_head.bias", {words});
  } else {
    b.linear("lm_head", words, width, true);
  }
  const bool norms = b.flag("qk_layernorm", false);
  b.decoder({.head = tied ? "" : "lm_head",
             .output = "dense",
             .query_norm = norms ? "q_layernorm" : "",
             .key_norm = norms ? "k_layernorm" : "",
             .gate = "",
             .up = "fc1",
             .down = "fc2"},
            words, size, keys);
}

// modeling_opt.py; the table of positions has two more rows than there are positions.
void opt(Builder& b) {
  const uint64_t width = b.number("hidden_size"), inner = b.number("ffn_dim");
  const uint64_t narrow = b.number("word_embed_proj_dim", width), words = b.number("vocab_size");
  const bool bias = b.flag("enable_bias", true), first = b.flag("do_layer_norm_before", true);
  const auto norm = [&](const std::string& name) {
    if (b.flag("layer_norm_elementwise_affine", true)) b.norm(name, width);
  };
  b.embedding("model.decoder.embed_tokens", words, narrow);
  b.embedding("model.decoder.embed_positions", b.number("max_position_embeddings") + 2, width);
  if (narrow != width) {
    b.linear("model.decoder.project_out", narrow, width, false);
    b.linear("model.decoder.project_in", width, narrow, false);
  }
  if (first && !b.flag("_remove_final_layer_norm", false)) norm("model.decoder.final_layer_norm");
  for (uint64_t i = 0; i < b.number("num_hidden_layers"); ++i) {
    const std::string layer = fmt::format("model.decoder.layers.{}.", i);
    for (const char* name : {"k_proj", "v_proj", "q_proj", "out_proj"})
      b.linear(layer + "self_attn." + name, width, width, bias);
    norm(layer + "self_attn_layer_norm");
    b.linear(layer + "fc1", inner, width, bias);
    b.linear(layer + "fc2", width, inner, bias);
    norm(layer + "final_layer_norm");
  }
  const bool tied = b.flag("tie_word_embeddings", true);
  if (!tied) b.linear("lm_head", words, narrow, false);
  const uint64_t heads = b.number("num_attention_heads", 12);
  b.decoder({.base = "model.decoder",
             .head = tied ? "" : "lm_head",
             .mlp = "",
             .output = "out_proj",
             .gate = "",
             .up = "fc1",
             .down = "fc2"},
            words, width / heads, heads);
}

// modeling_bert.py and modeling_roberta.py: their masked language models, whose decoder is the
// embedding.
void bert(Builder& b, const std::string& root, bool roberta) {
  const uint64_t width = b.number("hidden_size"), inner = b.number("intermediate_size");
  const uint64_t words = b.number("vocab_size");
  b.add(root + "embeddings.word_embeddings.weight", {words, width});
  b.add(root + "embeddings.position_embeddings.weight",
        {b.number("max_position_embeddings"), width});
  b.add(root + "embeddings.token_type_embeddings.weight", {b.number("type_vocab_size"), width});
  b.norm(root + "embeddings.LayerNorm", width);
  for (uint64_t i = 0; i < b.number("num_hidden_layers"); ++i) {
    const std::string layer = fmt::format("{}encoder.layer.{}.", root, i);
    for (const char* name : {"query", "key", "value"}) {
      b.linear(layer + "attention.self." + name, width, width, true);
    }
    b.linear(layer + "attention.output.dense", width, width, true);
    b.norm(layer + "attention.output.LayerNorm", width);
    b.linear(layer + "intermediate.dense", inner, width, true);
    b.linear(layer + "output.dense", width, inner, true);
    b.norm(layer + "output.LayerNorm", width);
  }
  const std::string head = roberta ? "lm_head." : "cls.predictions.";
  b.linear(head + (roberta ? "dense" : "transform.dense"), width, width, true);
  b.norm(head + (roberta ? "layer_norm" : "transform.LayerNorm"), width);
  b.add(head + "bias", {words});
}

using Family = std::function<void(Builder&)>;

const std::map<std::string, Family>& families() {
  static const std::map<std::string, Family> kFamilies = {
      {"llama", [](Builder& b) { llama(b, {}); }},
      {"mistral", [](Builder& b) { llama(b, {.key_heads = 8}); }},
      {"qwen2", [](Builder& b) { llama(b, {.attention_bias = true}); }},
      {"qwen3", [](Builder& b) { llama(b, {.head_norms = true, .head_size = 128}); }},
      {"gemma", [](Builder& b) { llama(b, {.ties = true, .key_heads = 16, .head_size = 256}); }},
      {"gemma2",
       [](Builder& b) {
         llama(b, {.ties = true, .output_norms = true, .key_heads = 4, .head_size = 256});
       }},
      {"gemma3_text",
       [](Builder& b) {
         llama(b, {.head_norms = true,
                   .ties = true,
                   .output_norms = true,
                   .key_heads = 4,
                   .head_size = 256});
       }},
      {"gpt2", gpt2},
      {"gptj", gptj},
      {"gpt_neox", gpt_neox},
      {"opt", opt},
      {"phi", phi},
      {"bert", [](Builder& b) { bert(b, "bert.", false); }},
      {"roberta", [](Builder& b) { bert(b, "roberta.", true); }},
      {"xlm-roberta", [](Builder& b) { bert(b, "roberta.", true); }},
  };
  return kFamilies;
}

}  // namespace

LoggedModel model_of_parameters(const std::string& name, std::vector<LoggedParameter> parameters) {
  LoggedModel model{.name = name};
  std::map<std::string, uint64_t> numbers;
  const std::function<uint64_t(const std::string&)> module = [&](const std::string& path) {
    const auto known = numbers.find(path);
    if (known != numbers.end()) return known->second;
    const size_t dot = path.rfind('.');
    const int64_t parent =
        path.empty()
            ? -1
            : static_cast<int64_t>(module(dot == std::string::npos ? "" : path.substr(0, dot)));
    model.modules.push_back({.name = path, .type = "", .parent = parent});
    return numbers[path] = model.modules.size() - 1;
  };
  module("");
  for (LoggedParameter& parameter : parameters) {
    const size_t dot = parameter.name.rfind('.');
    parameter.module = module(dot == std::string::npos ? "" : parameter.name.substr(0, dot));
    parameter.in_memory = false;
    model.parameters.push_back(std::move(parameter));
  }
  return model;
}

namespace {

// Reads a config.json: calls take(builder, model type).
template <class Take>
auto read_transformer(const std::string& text, const std::string& file, const Take& take) {
  const json config = json::parse(text, nullptr, false);
  if (!config.is_object()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: not a JSON object", file),
                {.subject = file, .hint = "give a config.json as save_pretrained writes it"});
  }
  const auto type = config.find("model_type");
  const std::string name =
      type != config.end() && type->is_string() ? type->get<std::string>() : std::string();
  const auto family = families().find(name);
  if (family == families().end()) {
    std::vector<std::string> known;
    for (const auto& [key, build] : families()) known.push_back(key);
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: model_type is '{}'; known are {}", file, name, fmt::join(known, ", ")),
        {.subject = "model_type",
         .hint = "estimate from the model's checkpoint, or from a program that trains it"});
  }
  Builder builder(config, file);
  family->second(builder);
  return take(builder, name);
}

}  // namespace

LoggedModel transformer_of(const std::string& text, const std::string& file) {
  return read_transformer(
      text, file, [](Builder& builder, const std::string& name) { return builder.model(name); });
}

std::vector<sharding::PlannedLayers> plan_of_transformer(const std::string& text,
                                                         const std::string& file, int ranks) {
  return read_transformer(text, file, [&](Builder& builder, const std::string&) {
    std::vector<sharding::PlannedLayers> plan;
    for (const sharding::PlanRule& rule : builder.plan(ranks))
      plan.push_back(sharding::planned_layers(rule));
    return plan;
  });
}

LayerChain chain_of_transformer(const std::string& text, const std::string& file) {
  return read_transformer(text, file,
                          [](Builder& builder, const std::string&) { return builder.chain(); });
}

}  // namespace coupler::estimate
