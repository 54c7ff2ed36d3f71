// A small GPT in plain LibTorch: pre-norm blocks, one linear layer for query, key and value, fused
// causal attention, a GELU MLP, an untied head. Its only uses of Coupler are to list its layers for
// a pipeline over ranks, to say how they are divided over a tensor group, and to ask for positions,
// since a context group may divide the sequence.
#pragma once

#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <coupler/context_parallel.h>
#include <coupler/pipeline_layers.h>
#include <coupler/tensor_parallel.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

struct GPTOptions {
  int64_t vocabulary = 256;
  int64_t width = 128;  // a multiple of heads
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t sequence = 128;  // maximum length
};

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const GPTOptions& options)
      : head_(options.width / options.heads),
        norm1_(register_module("n1", layer_norm(options.width))),
        norm2_(register_module("n2", layer_norm(options.width))),
        qkv_(register_module("qkv", torch::nn::Linear(options.width, 3 * options.width))),
        out_(register_module("o", torch::nn::Linear(options.width, options.width))),
        up_(register_module("f1", torch::nn::Linear(options.width, 4 * options.width))),
        down_(register_module("f2", torch::nn::Linear(4 * options.width, options.width))) {}

  // x: [batch, sequence, width]
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor attended = x + apply(out_, attention(apply(qkv_, norm1_(x))));
    return attended + apply(down_, at::gelu(apply(up_, norm2_(attended))));
  }

 private:
  // The layer's own forward adds the bias in a kernel of its own if x has three dimensions.
  static at::Tensor apply(const torch::nn::Linear& layer, const at::Tensor& x) {
    return at::linear(x, layer->weight, layer->bias);
  }

  static torch::nn::LayerNorm layer_norm(int64_t width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
  }

  at::Tensor attention(const at::Tensor& qkv) const {
    const int64_t batch = qkv.size(0), sequence = qkv.size(1), width = qkv.size(2) / 3;
    // As many heads as the rank computes.
    const auto parts = qkv.view({batch, sequence, 3, -1, head_}).permute({2, 0, 3, 1, 4}).unbind(0);
    return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], /*attn_mask=*/{},
                                            /*dropout_p=*/0.0, /*is_causal=*/true)
        .transpose(1, 2)
        .reshape({batch, sequence, width});
  }

  int64_t head_;  // the size of one
  torch::nn::LayerNorm norm1_, norm2_;
  torch::nn::Linear qkv_, out_, up_, down_;
};
TORCH_MODULE(Block);

class GPTImpl : public torch::nn::Module,
                public coupler::PipelineLayers,
                public coupler::TensorParallelLayers {
 public:
  explicit GPTImpl(const GPTOptions& options)
      : head_size_(options.width / options.heads),
        tokens_(register_module("te", torch::nn::Embedding(options.vocabulary, options.width))),
        positions_(register_module("pe", torch::nn::Embedding(options.sequence, options.width))),
        blocks_(register_module("blocks", torch::nn::ModuleList())),
        norm_(register_module("nf",
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})))),
        head_(register_module(
            "head", torch::nn::Linear(
                        torch::nn::LinearOptions(options.width, options.vocabulary).bias(false)))) {
    for (int64_t i = 0; i < options.layers; ++i) blocks_->push_back(Block(options));
  }

  // tokens: [batch, sequence] of int64. Returns the logits of each next token: [batch, sequence,
  // vocabulary].
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor hidden = embed(tokens);
    for (const auto& block : *blocks_) hidden = block->as<Block>()->forward(hidden);
    return head_(norm_(hidden));
  }

  // The vocabulary of bytes is small: the embedding and the head stay whole.
  coupler::TensorPlan tensor_plan(int) const override {
    return {{"blocks.*.qkv", "colwise/3", head_size_},
            {"blocks.*.o", "rowwise", head_size_},
            {"blocks.*.f1", "colwise"},
            {"blocks.*.f2", "rowwise"},
            {"te", "sequence"},
            {"pe", "sequence"},
            {"blocks.*.n*", "sequence"},
            {"nf", "sequence"},
            {"head", "gather_sequence"}};
  }

  std::vector<coupler::PipelineLayer> pipeline_layers() override {
    std::vector<coupler::PipelineLayer> layers;
    layers.push_back({"te", {tokens_.ptr(), positions_.ptr()}, [this](const at::Tensor& tokens) {
                        return embed(tokens);
                      }});
    for (const auto& block : *blocks_) {
      layers.push_back({"blocks." + std::to_string(layers.size() - 1),
                        {block},
                        [block](const at::Tensor& x) { return block->as<Block>()->forward(x); }});
    }
    layers.push_back({"nf", {norm_.ptr(), head_.ptr()}, [this](const at::Tensor& x) {
                        return head_(norm_(x));
                      }});
    return layers;
  }

 private:
  at::Tensor embed(const at::Tensor& tokens) {
    return tokens_(tokens) +
           positions_(coupler::context_positions(tokens.size(1), tokens.device()));
  }

  int64_t head_size_;
  torch::nn::Embedding tokens_, positions_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
};
TORCH_MODULE(GPT);
