// GPT-J in plain LibTorch: names, shapes and results are those of transformers' GPTJForCausalLM, so
// its checkpoints fit (EleutherAI/gpt-j-6B and what is trained from it). For inference.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <string>

// The keys of config.json that matter.
struct GPTJOptions {
  int64_t vocabulary = 50400;  // vocab_size
  int64_t width = 4096;        // n_embd
  int64_t layers = 28;         // n_layer
  int64_t heads = 16;          // n_head
  int64_t rotary = 64;         // rotary_dim: so much of each head knows its position
  double epsilon = 1e-5;       // layer_norm_epsilon
};

// Sines and cosines of positions, each [positions, rotary].
struct Rotation {
  Rotation(int64_t positions, int64_t rotary, c10::ScalarType type) {
    const at::Tensor frequency = torch::pow(10000.0, -torch::arange(0, rotary, 2) / double(rotary));
    const at::Tensor angle =
        torch::outer(torch::arange(positions, torch::kFloat), frequency).repeat_interleave(2, 1);
    sine = angle.sin().to(type);
    cosine = angle.cos().to(type);
  }
  // x: [batch, heads, positions, head]. Neighbours are the two coordinates that are turned.
  at::Tensor turn(const at::Tensor& x) const {
    const int64_t rotary = sine.size(1);
    const at::Tensor part = x.narrow(-1, 0, rotary);
    const at::Tensor even = part.slice(-1, 0, rotary, 2), odd = part.slice(-1, 1, rotary, 2);
    const at::Tensor turned = part * cosine + torch::stack({-odd, even}, -1).flatten(-2) * sine;
    return torch::cat({turned, x.narrow(-1, rotary, x.size(-1) - rotary)}, -1);
  }

  at::Tensor sine, cosine;
};

struct GPTJAttentionImpl : torch::nn::Module {
  explicit GPTJAttentionImpl(const GPTJOptions& o) : heads(o.heads), rotary(o.rotary) {
    const auto projection = [&](const char* name) {
      return register_module(
          name, torch::nn::Linear(torch::nn::LinearOptions(o.width, o.width).bias(false)));
    };
    k_proj = projection("k_proj");
    v_proj = projection("v_proj");
    q_proj = projection("q_proj");
    out_proj = projection("out_proj");
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto split = [&](const at::Tensor& y) {
      return y.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
    };
    const at::Tensor query = split(q_proj->forward(x)), key = split(k_proj->forward(x));
    const Rotation rotation(x.size(1), rotary, query.scalar_type());
    const at::Tensor y = at::scaled_dot_product_attention(rotation.turn(query), rotation.turn(key),
                                                          split(v_proj->forward(x)), {}, 0.0,
                                                          /*is_causal=*/true);
    return out_proj->forward(y.transpose(1, 2).flatten(2));
  }
  int64_t heads, rotary;
  torch::nn::Linear k_proj{nullptr}, v_proj{nullptr}, q_proj{nullptr}, out_proj{nullptr};
};
TORCH_MODULE(GPTJAttention);

struct GPTJMLPImpl : torch::nn::Module {
  explicit GPTJMLPImpl(const GPTJOptions& o) {
    fc_in = register_module("fc_in", torch::nn::Linear(o.width, 4 * o.width));
    fc_out = register_module("fc_out", torch::nn::Linear(4 * o.width, o.width));
  }
  at::Tensor forward(const at::Tensor& x) {
    return fc_out->forward(at::gelu(fc_in->forward(x), "tanh"));
  }
  torch::nn::Linear fc_in{nullptr}, fc_out{nullptr};
};
TORCH_MODULE(GPTJMLP);

struct GPTJBlockImpl : torch::nn::Module {
  explicit GPTJBlockImpl(const GPTJOptions& o) {
    ln_1 = register_module(
        "ln_1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width}).eps(o.epsilon)));
    attn = register_module("attn", GPTJAttention(o));
    mlp = register_module("mlp", GPTJMLP(o));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = ln_1->forward(x);
    return x + attn->forward(y) + mlp->forward(y);
  }
  torch::nn::LayerNorm ln_1{nullptr};
  GPTJAttention attn{nullptr};
  GPTJMLP mlp{nullptr};
};
TORCH_MODULE(GPTJBlock);

struct GPTJModelImpl : torch::nn::Module {
  explicit GPTJModelImpl(const GPTJOptions& o) {
    wte = register_module("wte", torch::nn::Embedding(o.vocabulary, o.width));
    drop = register_module("drop", torch::nn::Dropout(0.0));
    for (int64_t i = 0; i < o.layers; ++i) h->push_back(GPTJBlock(o));
    register_module("h", h);
    ln_f = register_module(
        "ln_f", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width}).eps(o.epsilon)));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = drop->forward(wte->forward(tokens));
    for (const auto& block : *h) x = block->as<GPTJBlockImpl>()->forward(x);
    return ln_f->forward(x);
  }
  torch::nn::Embedding wte{nullptr};
  torch::nn::Dropout drop{nullptr};
  torch::nn::ModuleList h;
  torch::nn::LayerNorm ln_f{nullptr};
};
TORCH_MODULE(GPTJModel);

struct GPTJImpl : torch::nn::Module {
  explicit GPTJImpl(const GPTJOptions& options) {
    transformer = register_module("transformer", GPTJModel(options));
    lm_head = register_module("lm_head", torch::nn::Linear(options.width, options.vocabulary));
  }
  // [batch, positions] of tokens to [batch, positions, vocabulary] of scores.
  at::Tensor forward(const at::Tensor& tokens) {
    return lm_head->forward(transformer->forward(tokens));
  }
  GPTJModel transformer{nullptr};
  torch::nn::Linear lm_head{nullptr};
};
TORCH_MODULE(GPTJ);
