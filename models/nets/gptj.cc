// GPT-J, like transformers' GPTJForCausalLM: rotary positions on part of each head; attention and
// MLP of a block run in parallel.
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>

#include "json_file.h"
#include "nets/language_model.h"
#include "nets/layers.h"

namespace coupler {
namespace {

struct GPTJOptions {
  explicit GPTJOptions(const JsonObject& keys)
      : vocabulary(keys.size("vocab_size", 50400)),
        positions(keys.size("n_positions", 2048)),
        width(keys.size("n_embd", 4096)),
        layers(keys.size("n_layer", 28)),
        heads(keys.size("n_head", 16)),
        rotary(keys.size("rotary_dim", 64)),
        inner(keys.size("n_inner", 4 * width)),
        epsilon(keys.number("layer_norm_epsilon", 1e-5)),
        tied(keys.flag("tie_word_embeddings", false)),
        activation(activation_of(keys, "activation_function", "gelu_new")) {
    if (width % heads != 0)
      keys.refuse("n_head", "does not divide 'n_embd'", "use the config.json of a GPT-J model");
    if (rotary % 2 != 0 || rotary > width / heads)
      keys.refuse("rotary_dim", "must be even and no more than n_embd / n_head",
                  "use the config.json of a GPT-J model");
  }
  int64_t vocabulary, positions, width, layers, heads, rotary, inner;
  double epsilon;
  bool tied;
  Activation activation;
};

struct GPTJAttentionImpl : torch::nn::Module {
  explicit GPTJAttentionImpl(const GPTJOptions& o) : heads(o.heads) {
    const auto projection = [&](const char* name) {
      return register_module(name, linear(o.width, o.width, /*bias=*/false));
    };
    k_proj = projection("k_proj");
    v_proj = projection("v_proj");
    q_proj = projection("q_proj");
    out_proj = projection("out_proj");
  }
  at::Tensor forward(const at::Tensor& x, const RotaryEmbedding& rope, const AttentionPass& pass,
                     size_t layer) {
    const at::Tensor query = rope.rotate(split_heads(q_proj->forward(x), heads));
    const at::Tensor key = rope.rotate(split_heads(k_proj->forward(x), heads));
    const at::Tensor value = split_heads(v_proj->forward(x), heads);
    return out_proj->forward(attend(query, key, value, pass, layer));
  }
  int64_t heads;
  torch::nn::Linear k_proj{nullptr}, v_proj{nullptr}, q_proj{nullptr}, out_proj{nullptr};
};
TORCH_MODULE(GPTJAttention);

struct GPTJMLPImpl : torch::nn::Module {
  explicit GPTJMLPImpl(const GPTJOptions& o) : activation(o.activation) {
    fc_in = register_module("fc_in", linear(o.width, o.inner, /*bias=*/true));
    fc_out = register_module("fc_out", linear(o.inner, o.width, /*bias=*/true));
  }
  at::Tensor forward(const at::Tensor& x) { return fc_out->forward(activation(fc_in->forward(x))); }
  Activation activation;
  torch::nn::Linear fc_in{nullptr}, fc_out{nullptr};
};
TORCH_MODULE(GPTJMLP);

struct GPTJBlockImpl : torch::nn::Module {
  explicit GPTJBlockImpl(const GPTJOptions& o) {
    ln_1 = register_module("ln_1", layer_norm(o.width, o.epsilon));
    attn = register_module("attn", GPTJAttention(o));
    mlp = register_module("mlp", GPTJMLP(o));
  }
  at::Tensor forward(const at::Tensor& x, const RotaryEmbedding& rope, const AttentionPass& pass,
                     size_t layer) {
    const at::Tensor y = ln_1->forward(x);
    return x + attn->forward(y, rope, pass, layer) + mlp->forward(y);
  }
  torch::nn::LayerNorm ln_1{nullptr};
  GPTJAttention attn{nullptr};
  GPTJMLP mlp{nullptr};
};
TORCH_MODULE(GPTJBlock);

class GPTJ : public LanguageModel {
 public:
  explicit GPTJ(const GPTJOptions& o)
      : LanguageModel("GPTJForCausalLM", o.vocabulary, o.positions), rotary_(o.rotary) {
    PartsOf body = register_module("transformer", PartsOf());
    auto wte = body->add("wte", torch::nn::Embedding(o.vocabulary, o.width));
    add_part(
        {"transformer.wte", {wte.ptr()}, [wte](const at::Tensor& tokens, AttentionPass&) mutable {
           return wte->forward(tokens);
         }});
    auto blocks = body->add("h", torch::nn::ModuleList());
    for (size_t layer = 0; layer < static_cast<size_t>(o.layers); ++layer) {
      GPTJBlock block(o);
      blocks->push_back(block);
      add_part({"transformer.h." + std::to_string(layer),
                {block.ptr()},
                [this, block, layer](const at::Tensor& x, AttentionPass& pass) mutable {
                  return block->forward(x, rope_of(x, pass), pass, layer);
                }});
    }
    auto norm = body->add("ln_f", layer_norm(o.width, o.epsilon));
    head_ = register_module(
        "lm_head", Head(o.width, o.vocabulary, /*bias=*/true, o.tied ? wte->weight : at::Tensor()));
    add_part({"transformer.ln_f",
              {norm.ptr(), head_.ptr()},
              [norm](const at::Tensor& x, AttentionPass&) mutable { return norm->forward(x); }});
  }
  at::Tensor logits(const at::Tensor& hidden) override { return head_->forward(hidden); }
  const char* block_class() const override { return "GPTJBlock"; }
  const char* base_prefix() const override { return "transformer."; }

 private:
  const RotaryEmbedding& rope_of(const at::Tensor& x, AttentionPass& pass) {
    // Created lazily: the model may be built under EmptyWeights.
    if (!frequencies_.defined()) frequencies_ = rotary_frequencies(rotary_, 10000.0);
    if (!pass.rope)
      pass.rope.emplace(pass.positions, frequencies_, RotaryStyle::kInterleaved, x.scalar_type());
    return *pass.rope;
  }

  int64_t rotary_;
  at::Tensor frequencies_;
  Head head_{nullptr};
};

}  // namespace

std::shared_ptr<LanguageModel> make_gptj(const ModelConfig& config) {
  return std::make_shared<GPTJ>(GPTJOptions(config.keys()));
}

}  // namespace coupler
