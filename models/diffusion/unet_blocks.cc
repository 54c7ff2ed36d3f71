#include "diffusion/unet_blocks.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>

#include "nets/layers.h"

namespace coupler::diffusion {
namespace {

template <class Holder>
void add_list(torch::nn::Module& module, const char* name, const std::vector<Holder>& parts) {
  if (parts.empty()) return;
  torch::nn::ModuleList list;
  for (const Holder& part : parts) list->push_back(part);
  module.register_module(name, list);
}

// Registers, for example, "downsamplers.0.conv".
torch::nn::Conv2d add_sampler(torch::nn::Module& module, const char* name, int64_t channels,
                              int64_t stride) {
  PartsOf list;
  module.register_module(name, list);
  return list->add("0", PartsOf())->add("conv", convolution(channels, channels, 3, stride));
}

int64_t time_width(const UNetOptions& o) { return 4 * o.channels[0]; }

}  // namespace

TransformerOptions UNetOptions::transformer(size_t level) const {
  return {.channels = channels[level],
          .heads = heads[level],
          .layers = 1,
          .groups = groups,
          .text_width = text_width,
          .linear = linear_projection};
}

ResnetImpl::ResnetImpl(int64_t in, int64_t out, int64_t time_width, int64_t groups, double epsilon)
    : Module("ResnetBlock2D") {
  norm1_ = register_module("norm1", group_norm(groups, in, epsilon));
  conv1_ = register_module("conv1", convolution(in, out, 3));
  time_ = register_module("time_emb_proj", linear(time_width, out, /*bias=*/true));
  norm2_ = register_module("norm2", group_norm(groups, out, epsilon));
  conv2_ = register_module("conv2", convolution(out, out, 3));
  if (in != out) shortcut_ = register_module("conv_shortcut", convolution(in, out, 1));
}

at::Tensor ResnetImpl::forward(const at::Tensor& x, const at::Tensor& time) {
  at::Tensor y = conv1_->forward(normed_silu(norm1_, x));
  y.add_(time_->forward(time).unsqueeze(-1).unsqueeze(-1));
  y = conv2_->forward(normed_silu(norm2_, y));
  return y.add_(shortcut_ ? shortcut_->forward(x) : x);
}

DownBlockImpl::DownBlockImpl(const UNetOptions& o, size_t level)
    : Module(o.down_attends[level] ? "CrossAttnDownBlock2D" : "DownBlock2D") {
  const int64_t out = o.channels[level];
  for (int64_t i = 0; i < o.layers; ++i) {
    const int64_t in = i > 0 ? out : o.channels[level == 0 ? 0 : level - 1];
    resnets_.emplace_back(in, out, time_width(o), o.groups, o.epsilon);
    if (o.down_attends[level]) transformers_.emplace_back(o.transformer(level));
  }
  add_list(*this, "attentions", transformers_);
  add_list(*this, "resnets", resnets_);
  if (level + 1 < o.channels.size()) smaller_ = add_sampler(*this, "downsamplers", out, 2);
}

at::Tensor DownBlockImpl::forward(at::Tensor x, const Beside& beside,
                                  std::vector<at::Tensor>& skips) {
  for (size_t i = 0; i < resnets_.size(); ++i) {
    x = resnets_[i]->forward(x, beside.time);
    if (!transformers_.empty()) x = transformers_[i]->forward(x, beside.states);
    skips.push_back(x);
  }
  if (smaller_) skips.push_back(x = smaller_->forward(x));
  return x;
}

MiddleBlockImpl::MiddleBlockImpl(const UNetOptions& o) : Module("UNetMidBlock2DCrossAttn") {
  const size_t level = o.channels.size() - 1;
  const int64_t width = o.channels[level];
  transformer_ = Transformer(o.transformer(level));
  first_ = Resnet(width, width, time_width(o), o.groups, o.epsilon);
  second_ = Resnet(width, width, time_width(o), o.groups, o.epsilon);
  add_list<Transformer>(*this, "attentions", {transformer_});
  add_list<Resnet>(*this, "resnets", {first_, second_});
}

at::Tensor MiddleBlockImpl::forward(at::Tensor x, const Beside& beside) {
  x = transformer_->forward(first_->forward(x, beside.time), beside.states);
  return second_->forward(x, beside.time);
}

UpBlockImpl::UpBlockImpl(const UNetOptions& o, size_t step)
    : Module(o.up_attends[step] ? "CrossAttnUpBlock2D" : "UpBlock2D") {
  const size_t levels = o.channels.size(), level = levels - 1 - step;
  const int64_t out = o.channels[level];
  const int64_t below = o.channels[std::min(level + 1, levels - 1)];
  const int64_t above = o.channels[level == 0 ? 0 : level - 1];
  for (int64_t i = 0; i <= o.layers; ++i) {
    const int64_t in = (i == 0 ? below : out) + (i == o.layers ? above : out);
    resnets_.emplace_back(in, out, time_width(o), o.groups, o.epsilon);
    if (o.up_attends[step]) transformers_.emplace_back(o.transformer(level));
  }
  add_list(*this, "attentions", transformers_);
  add_list(*this, "resnets", resnets_);
  if (level > 0) larger_ = add_sampler(*this, "upsamplers", out, 1);
}

at::Tensor UpBlockImpl::forward(at::Tensor x, const Beside& beside,
                                std::vector<at::Tensor>& skips) {
  for (size_t i = 0; i < resnets_.size(); ++i) {
    x = at::cat({x, skips.back()}, 1);
    skips.pop_back();
    x = resnets_[i]->forward(x, beside.time);
    if (!transformers_.empty()) x = transformers_[i]->forward(x, beside.states);
  }
  if (!larger_) return x;
  // Halving an odd size rounded up, so the skip gives the size.
  const at::Tensor& next = skips.back();
  x = at::upsample_nearest2d(x, {next.size(2), next.size(3)});
  return larger_->forward(x);
}

}  // namespace coupler::diffusion
