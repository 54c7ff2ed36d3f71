// LLaMA, like transformers' LlamaForCausalLM: rotary positions, keys shared by several queries,
// gated linear units, RMS norms.
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <coupler/error.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>

#include "json_file.h"
#include "nets/language_model.h"
#include "nets/layers.h"

namespace coupler {
namespace {

struct LlamaOptions {
  explicit LlamaOptions(const JsonObject& keys)
      : vocabulary(keys.size("vocab_size", 32000)),
        positions(keys.size("max_position_embeddings", 2048)),
        width(keys.size("hidden_size", 4096)),
        layers(keys.size("num_hidden_layers", 32)),
        heads(keys.size("num_attention_heads", 32)),
        key_heads(keys.size("num_key_value_heads", heads)),
        head(keys.size("head_dim", std::max<int64_t>(width / heads, 1))),
        inner(keys.size("intermediate_size", 11008)),
        epsilon(keys.number("rms_norm_eps", 1e-6)),
        tied(keys.flag("tie_word_embeddings", false)),
        attention_bias(keys.flag("attention_bias", false)),
        mlp_bias(keys.flag("mlp_bias", false)),
        activation(activation_of(keys, "hidden_act", "silu")) {
    if (heads % key_heads != 0)
      keys.refuse("num_key_value_heads", "does not divide 'num_attention_heads'",
                  "use the config.json of a LLaMA model");
    if (head % 2 != 0)
      keys.refuse("head_dim", "must be even", "use the config.json of a LLaMA model");
    rotary_frequencies(keys, head);  // throws if not supported
  }
  int64_t vocabulary, positions, width, layers, heads, key_heads, head, inner;
  double epsilon;
  bool tied, attention_bias, mlp_bias;
  Activation activation;
};

struct LlamaRMSNormImpl : torch::nn::Module {
  LlamaRMSNormImpl(int64_t width, double epsilon_of) : epsilon(epsilon_of) {
    weight = register_parameter("weight", at::ones({width}));
  }
  // In float whatever the weights' type, as in transformers.
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor whole = x.to(at::kFloat);
    const at::Tensor scale = whole.square().mean(-1, true).add_(epsilon).rsqrt_();
    return weight * whole.mul(scale).to(x.scalar_type());
  }
  double epsilon;
  at::Tensor weight;
};
TORCH_MODULE(LlamaRMSNorm);

struct LlamaAttentionImpl : torch::nn::Module {
  explicit LlamaAttentionImpl(const LlamaOptions& o) : heads(o.heads), key_heads(o.key_heads) {
    const bool bias = o.attention_bias;
    q_proj = register_module("q_proj", linear(o.width, o.heads * o.head, bias));
    k_proj = register_module("k_proj", linear(o.width, o.key_heads * o.head, bias));
    v_proj = register_module("v_proj", linear(o.width, o.key_heads * o.head, bias));
    o_proj = register_module("o_proj", linear(o.heads * o.head, o.width, bias));
  }
  at::Tensor forward(const at::Tensor& x, const RotaryEmbedding& rope, const AttentionPass& pass,
                     size_t layer) {
    // Queries and keys are rotated together.
    const at::Tensor rotated = rope.rotate(at::cat(
        {split_heads(q_proj->forward(x), heads), split_heads(k_proj->forward(x), key_heads)}, 1));
    const at::Tensor value = split_heads(v_proj->forward(x), key_heads);
    return o_proj->forward(attend(rotated.narrow(1, 0, heads), rotated.narrow(1, heads, key_heads),
                                  value, pass, layer));
  }
  int64_t heads, key_heads;
  torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
};
TORCH_MODULE(LlamaAttention);

struct LlamaMLPImpl : torch::nn::Module {
  explicit LlamaMLPImpl(const LlamaOptions& o) : activation(o.activation) {
    gate_proj = register_module("gate_proj", linear(o.width, o.inner, o.mlp_bias));
    up_proj = register_module("up_proj", linear(o.width, o.inner, o.mlp_bias));
    down_proj = register_module("down_proj", linear(o.inner, o.width, o.mlp_bias));
  }
  at::Tensor forward(const at::Tensor& x) {
    return down_proj->forward(activation(gate_proj->forward(x)).mul(up_proj->forward(x)));
  }
  Activation activation;
  torch::nn::Linear gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};
};
TORCH_MODULE(LlamaMLP);

struct LlamaDecoderLayerImpl : torch::nn::Module {
  explicit LlamaDecoderLayerImpl(const LlamaOptions& o) {
    self_attn = register_module("self_attn", LlamaAttention(o));
    mlp = register_module("mlp", LlamaMLP(o));
    input_layernorm = register_module("input_layernorm", LlamaRMSNorm(o.width, o.epsilon));
    post_attention_layernorm =
        register_module("post_attention_layernorm", LlamaRMSNorm(o.width, o.epsilon));
  }
  at::Tensor forward(const at::Tensor& x, const RotaryEmbedding& rope, const AttentionPass& pass,
                     size_t layer) {
    const at::Tensor attended =
        x + self_attn->forward(input_layernorm->forward(x), rope, pass, layer);
    return attended + mlp->forward(post_attention_layernorm->forward(attended));
  }
  LlamaAttention self_attn{nullptr};
  LlamaMLP mlp{nullptr};
  LlamaRMSNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};
};
TORCH_MODULE(LlamaDecoderLayer);

class Llama : public LanguageModel {
 public:
  Llama(const LlamaOptions& o, ModelConfig config)
      : LanguageModel("LlamaForCausalLM", o.vocabulary, o.positions),
        config_(std::move(config)),
        head_size_(o.head) {
    PartsOf body = register_module("model", PartsOf());
    auto embeddings = body->add("embed_tokens", torch::nn::Embedding(o.vocabulary, o.width));
    add_part({"model.embed_tokens",
              {embeddings.ptr()},
              [embeddings](const at::Tensor& tokens, AttentionPass&) mutable {
                return embeddings->forward(tokens);
              }});
    auto blocks = body->add("layers", torch::nn::ModuleList());
    for (size_t layer = 0; layer < static_cast<size_t>(o.layers); ++layer) {
      LlamaDecoderLayer block(o);
      blocks->push_back(block);
      add_part({"model.layers." + std::to_string(layer),
                {block.ptr()},
                [this, block, layer](const at::Tensor& x, AttentionPass& pass) mutable {
                  return block->forward(x, rope_of(x, pass), pass, layer);
                }});
    }
    auto norm = body->add("norm", LlamaRMSNorm(o.width, o.epsilon));
    head_ = register_module("lm_head", Head(o.width, o.vocabulary, /*bias=*/false,
                                            o.tied ? embeddings->weight : at::Tensor()));
    add_part({"model.norm",
              {norm.ptr(), head_.ptr()},
              [norm](const at::Tensor& x, AttentionPass&) mutable { return norm->forward(x); }});
  }
  at::Tensor logits(const at::Tensor& hidden) override { return head_->forward(hidden); }
  const char* block_class() const override { return "LlamaDecoderLayer"; }
  const char* base_prefix() const override { return "model."; }

 private:
  const RotaryEmbedding& rope_of(const at::Tensor& x, AttentionPass& pass) {
    // Created lazily: the model may be built under EmptyWeights.
    if (!frequencies_.defined()) frequencies_ = rotary_frequencies(config_.keys(), head_size_);
    if (!pass.rope)
      pass.rope.emplace(pass.positions, frequencies_, RotaryStyle::kHalf, x.scalar_type());
    return *pass.rope;
  }

  ModelConfig config_;
  int64_t head_size_;
  at::Tensor frequencies_;
  Head head_{nullptr};
};

}  // namespace

std::shared_ptr<LanguageModel> make_llama(const ModelConfig& config) {
  return std::make_shared<Llama>(LlamaOptions(config.keys()), config);
}

}  // namespace coupler
