// The down, middle and up blocks of a UNet. Used by one thread.
#pragma once

#include <torch/nn/modules/linear.h>

#include "diffusion/parts.h"
#include "diffusion/transformer.h"

namespace coupler::diffusion {

struct UNetOptions {
  explicit UNetOptions(const JsonObject& keys);

  TransformerOptions transformer(size_t level) const;

  int64_t in_channels, out_channels, layers, groups, text_width;
  double epsilon;
  bool linear_projection, sine_last;
  double frequency_shift;
  std::vector<int64_t> channels, heads;
  std::vector<bool> down_attends, up_attends;
};

// Two convolutions with a residual connection; the time embedding is added between them.
class ResnetImpl : public torch::nn::Module {
 public:
  ResnetImpl(int64_t in, int64_t out, int64_t time_width, int64_t groups, double epsilon);
  // time: [batch, time width], after silu.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& time);

 private:
  torch::nn::GroupNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr}, shortcut_{nullptr};
  torch::nn::Linear time_{nullptr};
};
TORCH_MODULE(Resnet);

// Inputs that accompany an image through a UNet.
struct Beside {
  at::Tensor time;    // as for Resnet
  at::Tensor states;  // the encoded text
};

// diffusers' DownBlock2D and CrossAttnDownBlock2D.
class DownBlockImpl : public torch::nn::Module {
 public:
  DownBlockImpl(const UNetOptions& options, size_t level);
  // Appends each intermediate image to skips.
  at::Tensor forward(at::Tensor x, const Beside& beside, std::vector<at::Tensor>& skips);

 private:
  std::vector<Resnet> resnets_;
  std::vector<Transformer> transformers_;
  torch::nn::Conv2d smaller_{nullptr};
};
TORCH_MODULE(DownBlock);

class MiddleBlockImpl : public torch::nn::Module {
 public:
  explicit MiddleBlockImpl(const UNetOptions& options);
  at::Tensor forward(at::Tensor x, const Beside& beside);

 private:
  Resnet first_{nullptr}, second_{nullptr};
  Transformer transformer_{nullptr};
};
TORCH_MODULE(MiddleBlock);

// diffusers' UpBlock2D and CrossAttnUpBlock2D. step: counts from the bottom; 0 is the lowest level.
class UpBlockImpl : public torch::nn::Module {
 public:
  UpBlockImpl(const UNetOptions& options, size_t step);
  // Pops its inputs from the end of skips.
  at::Tensor forward(at::Tensor x, const Beside& beside, std::vector<at::Tensor>& skips);

 private:
  std::vector<Resnet> resnets_;
  std::vector<Transformer> transformers_;
  torch::nn::Conv2d larger_{nullptr};
};
TORCH_MODULE(UpBlock);

}  // namespace coupler::diffusion
