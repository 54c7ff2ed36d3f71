// The attention blocks of a UNet: pixels attend to each other and to the text. Used by one thread.
#pragma once

#include <torch/nn/modules/linear.h>

#include "diffusion/parts.h"

namespace coupler::diffusion {

struct TransformerOptions {
  int64_t channels = 0, heads = 1, layers = 1, groups = 32, text_width = 768;
  bool linear = false;  // projections are linear layers; otherwise 1 × 1 convolutions
};

struct TransformerBlockImpl;

// diffusers' Transformer2DModel.
class TransformerImpl : public torch::nn::Module {
 public:
  explicit TransformerImpl(const TransformerOptions& options);
  // x: [batch, channels, height, width]; states: [batch, tokens, text width].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& states);

 private:
  torch::nn::GroupNorm norm_{nullptr};
  torch::nn::Conv2d conv_in_{nullptr}, conv_out_{nullptr};
  torch::nn::Linear linear_in_{nullptr}, linear_out_{nullptr};
  std::vector<std::shared_ptr<TransformerBlockImpl>> blocks_;
};
TORCH_MODULE(Transformer);

}  // namespace coupler::diffusion
