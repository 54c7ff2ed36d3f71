// GPT-2, like transformers' GPT2LMHeadModel: learned positions, a head that shares the embeddings'
// weights, and linear layers whose weights are [in, out].
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <coupler/error.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>

#include "json_file.h"
#include "nets/language_model.h"
#include "nets/layers.h"

namespace coupler {
namespace {

struct GPT2Options {
  explicit GPT2Options(const JsonObject& keys)
      : vocabulary(keys.size("vocab_size", 50257)),
        positions(keys.size("n_positions", 1024)),
        width(keys.size("n_embd", 768)),
        layers(keys.size("n_layer", 12)),
        heads(keys.size("n_head", 12)),
        inner(keys.size("n_inner", 4 * width)),
        epsilon(keys.number("layer_norm_epsilon", 1e-5)),
        tied(keys.flag("tie_word_embeddings", true)),
        activation(activation_of(keys, "activation_function", "gelu_new")) {
    if (width % heads != 0)
      keys.refuse("n_head", "does not divide 'n_embd'", "use the config.json of a GPT-2 model");
    for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
      if (keys.flag(key, false))
        throw Error(ErrorCode::kUnsupported, keys.where() + ": '" + key + "' is not supported",
                    {.subject = key, .hint = "use a GPT-2 without it"});
    }
  }
  int64_t vocabulary, positions, width, layers, heads, inner;
  double epsilon;
  bool tied;
  Activation activation;
};

struct Conv1DImpl : torch::nn::Module {
  Conv1DImpl(int64_t in, int64_t out) {
    weight = register_parameter("weight", at::empty({in, out}));
    torch::nn::init::normal_(weight, 0.0, 0.02);
    bias = register_parameter("bias", at::zeros({out}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return at::addmm(bias, x.reshape({-1, x.size(-1)}), weight).view({x.size(0), x.size(1), -1});
  }
  at::Tensor weight, bias;
};
TORCH_MODULE(Conv1D);

struct GPT2AttentionImpl : torch::nn::Module {
  explicit GPT2AttentionImpl(const GPT2Options& o) : heads(o.heads) {
    c_attn = register_module("c_attn", Conv1D(o.width, 3 * o.width));
    c_proj = register_module("c_proj", Conv1D(o.width, o.width));
  }
  at::Tensor forward(const at::Tensor& x, const AttentionPass& pass, size_t layer) {
    const auto parts = c_attn->forward(x).chunk(3, -1);
    const auto part = [&](size_t i) { return split_heads(parts[i], heads); };
    return c_proj->forward(attend(part(0), part(1), part(2), pass, layer));
  }
  int64_t heads;
  Conv1D c_attn{nullptr}, c_proj{nullptr};
};
TORCH_MODULE(GPT2Attention);

struct GPT2MLPImpl : torch::nn::Module {
  explicit GPT2MLPImpl(const GPT2Options& o) : activation(o.activation) {
    c_fc = register_module("c_fc", Conv1D(o.width, o.inner));
    c_proj = register_module("c_proj", Conv1D(o.inner, o.width));
  }
  at::Tensor forward(const at::Tensor& x) { return c_proj->forward(activation(c_fc->forward(x))); }
  Activation activation;
  Conv1D c_fc{nullptr}, c_proj{nullptr};
};
TORCH_MODULE(GPT2MLP);

struct GPT2BlockImpl : torch::nn::Module {
  explicit GPT2BlockImpl(const GPT2Options& o) {
    ln_1 = register_module("ln_1", layer_norm(o.width, o.epsilon));
    attn = register_module("attn", GPT2Attention(o));
    ln_2 = register_module("ln_2", layer_norm(o.width, o.epsilon));
    mlp = register_module("mlp", GPT2MLP(o));
  }
  at::Tensor forward(const at::Tensor& x, const AttentionPass& pass, size_t layer) {
    const at::Tensor attended = x + attn->forward(ln_1->forward(x), pass, layer);
    return attended + mlp->forward(ln_2->forward(attended));
  }
  torch::nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  GPT2Attention attn{nullptr};
  GPT2MLP mlp{nullptr};
};
TORCH_MODULE(GPT2Block);

class GPT2 : public LanguageModel {
 public:
  explicit GPT2(const GPT2Options& o)
      : LanguageModel("GPT2LMHeadModel", o.vocabulary, o.positions) {
    PartsOf body = register_module("transformer", PartsOf());
    auto wte = body->add("wte", torch::nn::Embedding(o.vocabulary, o.width));
    auto wpe = body->add("wpe", torch::nn::Embedding(o.positions, o.width));
    add_part({"transformer.wte",
              {wte.ptr(), wpe.ptr()},
              [wte, wpe](const at::Tensor& tokens, AttentionPass& pass) mutable {
                return wte->forward(tokens) + wpe->forward(pass.positions);
              }});
    auto blocks = body->add("h", torch::nn::ModuleList());
    for (size_t layer = 0; layer < static_cast<size_t>(o.layers); ++layer) {
      GPT2Block block(o);
      blocks->push_back(block);
      add_part({"transformer.h." + std::to_string(layer),
                {block.ptr()},
                [block, layer](const at::Tensor& x, AttentionPass& pass) mutable {
                  return block->forward(x, pass, layer);
                }});
    }
    auto norm = body->add("ln_f", layer_norm(o.width, o.epsilon));
    head_ = register_module("lm_head", Head(o.width, o.vocabulary, /*bias=*/false,
                                            o.tied ? wte->weight : at::Tensor()));
    add_part({"transformer.ln_f",
              {norm.ptr(), head_.ptr()},
              [norm](const at::Tensor& x, AttentionPass&) mutable { return norm->forward(x); }});
  }
  at::Tensor logits(const at::Tensor& hidden) override { return head_->forward(hidden); }
  const char* block_class() const override { return "GPT2Block"; }
  const char* base_prefix() const override { return "transformer."; }

 private:
  Head head_{nullptr};
};

}  // namespace

std::shared_ptr<LanguageModel> make_gpt2(const ModelConfig& config) {
  return std::make_shared<GPT2>(GPT2Options(config.keys()));
}

}  // namespace coupler
