// DividedGPT: the GPT of examples/gpt with a layer each for queries, keys and values, which
// PyTorch's parallelize_module can divide, too. bench/python/models.py has the same model, with the
// same values for the same seed. Used by one thread.
#pragma once

#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <coupler/context_parallel.h>
#include <coupler/tensor_parallel.h>
#include <model.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace coupler::bench::mesh {

struct DividedBlockImpl : torch::nn::Module {
  explicit DividedBlockImpl(const GPTOptions& options) : head_size(options.width / options.heads) {
    const int64_t width = options.width;
    const auto layer = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, torch::nn::Linear(in, out));
    };
    n1 = register_module("n1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    n2 = register_module("n2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    q = layer("q", width, width);
    k = layer("k", width, width);
    v = layer("v", width, width);
    o = layer("o", width, width);
    f1 = layer("f1", width, 4 * width);
    f2 = layer("f2", 4 * width, width);
  }
  // x: [batch, sequence, width]
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = n1(x);
    const at::Tensor seen = at::scaled_dot_product_attention(heads(apply(q, y)), heads(apply(k, y)),
                                                             heads(apply(v, y)), /*attn_mask=*/{},
                                                             /*dropout_p=*/0.0, /*is_causal=*/true);
    const at::Tensor z = x + apply(o, seen.transpose(1, 2).flatten(2));
    return z + apply(f2, at::gelu(apply(f1, n2(z))));
  }
  // Adds the bias in the product, which the layer's own forward does not in three dimensions.
  static at::Tensor apply(const torch::nn::Linear& layer, const at::Tensor& x) {
    return at::linear(x, layer->weight, layer->bias);
  }
  // As many heads as the rank computes.
  at::Tensor heads(const at::Tensor& x) const {
    return x.view({x.size(0), x.size(1), -1, head_size}).transpose(1, 2);
  }
  int64_t head_size;
  torch::nn::LayerNorm n1{nullptr}, n2{nullptr};
  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr}, f1{nullptr}, f2{nullptr};
};
TORCH_MODULE(DividedBlock);

// Modules are made in the order in which Python makes them.
struct DividedGPTImpl : torch::nn::Module, TensorParallelLayers {
  explicit DividedGPTImpl(const GPTOptions& options) : head_size(options.width / options.heads) {
    const int64_t width = options.width;
    te = register_module("te", torch::nn::Embedding(options.vocabulary, width));
    pe = register_module("pe", torch::nn::Embedding(options.sequence, width));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < options.layers; ++i) blocks->push_back(DividedBlock(options));
    nf = register_module("nf", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    head = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(width, options.vocabulary).bias(false)));
  }
  TensorPlan tensor_plan(int) const override {
    return {{"te", "vocab"},
            {"blocks.*.q", "colwise", head_size},
            {"blocks.*.k", "colwise", head_size},
            {"blocks.*.v", "colwise", head_size},
            {"blocks.*.o", "rowwise", head_size},
            {"blocks.*.f1", "colwise"},
            {"blocks.*.f2", "rowwise"},
            {"head", "colwise_gather"}};
  }
  // tokens: [batch, sequence] of int64. Returns [batch, sequence, vocabulary].
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = te(tokens) + pe(context_positions(tokens.size(1)));
    for (const auto& block : *blocks) x = block->as<DividedBlock>()->forward(x);
    return head(nf(x));
  }
  int64_t head_size;
  torch::nn::Embedding te{nullptr}, pe{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm nf{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(DividedGPT);

}  // namespace coupler::bench::mesh
