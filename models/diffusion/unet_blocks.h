// The blocks that a UNet has on its way down and up. Modules of one thread.
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

// Two convolutions and a way around them, with what is told of the time between them.
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

// What goes with an image through a UNet.
struct Beside {
  at::Tensor time;    // as Resnet's
  at::Tensor states;  // of the text
};

// diffusers' DownBlock2D and CrossAttnDownBlock2D.
class DownBlockImpl : public torch::nn::Module {
 public:
  DownBlockImpl(const UNetOptions& options, size_t level);
  // Each intermediate image is added to skips.
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

// diffusers' UpBlock2D and CrossAttnUpBlock2D. step: from the bottom; 0 is of the lowest level.
class UpBlockImpl : public torch::nn::Module {
 public:
  UpBlockImpl(const UNetOptions& options, size_t step);
  // Takes what it needs from the end of skips.
  at::Tensor forward(at::Tensor x, const Beside& beside, std::vector<at::Tensor>& skips);

 private:
  std::vector<Resnet> resnets_;
  std::vector<Transformer> transformers_;
  torch::nn::Conv2d larger_{nullptr};
};
TORCH_MODULE(UpBlock);

}  // namespace coupler::diffusion
