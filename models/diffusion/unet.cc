#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <coupler/error.h>
#include <coupler/text_to_image.h>
#include <fmt/format.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "diffusion/parts.h"
#include "json_file.h"
#include "nets/layers.h"

namespace coupler::diffusion {

// The attention blocks of a UNet: pixels attend to each other and to the text. Used by one thread.

namespace {

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

struct CrossAttentionImpl : torch::nn::Module {
  // states_width: the width of the attended states.
  CrossAttentionImpl(int64_t width, int64_t of_heads, int64_t states_width) : heads(of_heads) {
    to_q = register_module("to_q", linear(width, width, /*bias=*/false));
    to_k = register_module("to_k", linear(states_width, width, /*bias=*/false));
    to_v = register_module("to_v", linear(states_width, width, /*bias=*/false));
    to_out = register_module("to_out", PartsOf())->add("0", linear(width, width, /*bias=*/true));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& states) {
    const at::Tensor query = split_heads(to_q->forward(x), heads);
    const at::Tensor key = split_heads(to_k->forward(states), heads);
    const at::Tensor value = split_heads(to_v->forward(states), heads);
    const at::Tensor seen = at::scaled_dot_product_attention(query, key, value);
    return to_out->forward(seen.transpose(1, 2).flatten(2));
  }
  int64_t heads;
  torch::nn::Linear to_q{nullptr}, to_k{nullptr}, to_v{nullptr}, to_out{nullptr};
};
TORCH_MODULE(CrossAttention);

// Input and output: [batch, pixels, width].
struct TransformerBlockImpl : torch::nn::Module {
  explicit TransformerBlockImpl(const TransformerOptions& o) {
    const auto norm = [&] { return layer_norm(o.channels, 1e-5); };
    norm1 = register_module("norm1", norm());
    attention1 = register_module("attn1", CrossAttention(o.channels, o.heads, o.channels));
    norm2 = register_module("norm2", norm());
    attention2 = register_module("attn2", CrossAttention(o.channels, o.heads, o.text_width));
    norm3 = register_module("norm3", norm());
    PartsOf net = register_module("ff", PartsOf())->add("net", PartsOf());
    wide = net->add("0", PartsOf())->add("proj", linear(o.channels, 8 * o.channels, true));
    narrow = net->add("2", linear(4 * o.channels, o.channels, true));
  }
  at::Tensor forward(at::Tensor x, const at::Tensor& states) {
    at::Tensor y = norm1->forward(x);
    x = attention1->forward(y, y).add_(x);
    x = attention2->forward(norm2->forward(x), states).add_(x);
    y = wide->forward(norm3->forward(x));
    const auto halves = y.chunk(2, -1);
    y = at::gelu(halves[1]).mul_(halves[0]);
    return narrow->forward(y).add_(x);
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr}, norm3{nullptr};
  CrossAttention attention1{nullptr}, attention2{nullptr};
  torch::nn::Linear wide{nullptr}, narrow{nullptr};
};

TransformerImpl::TransformerImpl(const TransformerOptions& o) : Module("Transformer2DModel") {
  norm_ = register_module("norm", group_norm(o.groups, o.channels, 1e-6));
  if (o.linear) {
    linear_in_ = register_module("proj_in", linear(o.channels, o.channels, true));
  } else {
    conv_in_ = register_module("proj_in", convolution(o.channels, o.channels, 1));
  }
  torch::nn::ModuleList blocks;
  for (int64_t i = 0; i < o.layers; ++i) {
    blocks_.push_back(std::make_shared<TransformerBlockImpl>(o));
    blocks->push_back(blocks_.back());
  }
  register_module("transformer_blocks", blocks);
  if (o.linear) {
    linear_out_ = register_module("proj_out", linear(o.channels, o.channels, true));
  } else {
    conv_out_ = register_module("proj_out", convolution(o.channels, o.channels, 1));
  }
}

at::Tensor TransformerImpl::forward(const at::Tensor& x, const at::Tensor& states) {
  const auto pixels = [](const at::Tensor& image) { return image.flatten(2).transpose(1, 2); };
  const auto image = [&](const at::Tensor& rows) { return rows.transpose(1, 2).reshape_as(x); };
  at::Tensor y = norm_->forward(x);
  y = linear_in_ ? linear_in_->forward(pixels(y)) : pixels(conv_in_->forward(y)).contiguous();
  for (const auto& block : blocks_) y = block->forward(std::move(y), states);
  y = linear_out_ ? image(linear_out_->forward(y)) : conv_out_->forward(image(y));
  return y.add_(x);
}

}  // namespace

// The down, middle and up blocks of a UNet. Used by one thread.

namespace {

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
struct Conditioning {
  at::Tensor time;    // as for Resnet
  at::Tensor states;  // the encoded text
};

// diffusers' DownBlock2D and CrossAttnDownBlock2D.
class DownBlockImpl : public torch::nn::Module {
 public:
  DownBlockImpl(const UNetOptions& options, size_t level);
  // Appends each intermediate image to skips.
  at::Tensor forward(at::Tensor x, const Conditioning& conditioning,
                     std::vector<at::Tensor>& skips);

 private:
  std::vector<Resnet> resnets_;
  std::vector<Transformer> transformers_;
  torch::nn::Conv2d smaller_{nullptr};
};
TORCH_MODULE(DownBlock);

class MiddleBlockImpl : public torch::nn::Module {
 public:
  explicit MiddleBlockImpl(const UNetOptions& options);
  at::Tensor forward(at::Tensor x, const Conditioning& conditioning);

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
  at::Tensor forward(at::Tensor x, const Conditioning& conditioning,
                     std::vector<at::Tensor>& skips);

 private:
  std::vector<Resnet> resnets_;
  std::vector<Transformer> transformers_;
  torch::nn::Conv2d larger_{nullptr};
};
TORCH_MODULE(UpBlock);

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

at::Tensor DownBlockImpl::forward(at::Tensor x, const Conditioning& conditioning,
                                  std::vector<at::Tensor>& skips) {
  for (size_t i = 0; i < resnets_.size(); ++i) {
    x = resnets_[i]->forward(x, conditioning.time);
    if (!transformers_.empty()) x = transformers_[i]->forward(x, conditioning.states);
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

at::Tensor MiddleBlockImpl::forward(at::Tensor x, const Conditioning& conditioning) {
  x = transformer_->forward(first_->forward(x, conditioning.time), conditioning.states);
  return second_->forward(x, conditioning.time);
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

at::Tensor UpBlockImpl::forward(at::Tensor x, const Conditioning& conditioning,
                                std::vector<at::Tensor>& skips) {
  for (size_t i = 0; i < resnets_.size(); ++i) {
    x = at::cat({x, skips.back()}, 1);
    skips.pop_back();
    x = resnets_[i]->forward(x, conditioning.time);
    if (!transformers_.empty()) x = transformers_[i]->forward(x, conditioning.states);
  }
  if (!larger_) return x;
  // Halving an odd size rounded up, so the skip gives the size.
  const at::Tensor& next = skips.back();
  x = at::upsample_nearest2d(x, {next.size(2), next.size(3)});
  return larger_->forward(x);
}

// Which blocks of a list attend to the text.
std::vector<bool> attending(const JsonObject& keys, const char* key, const std::string& with,
                            const std::string& without, std::vector<std::string> otherwise) {
  const std::vector<std::string> given = keys.texts(key);
  std::vector<bool> result;
  for (const std::string& type : given.empty() ? otherwise : given) {
    if (type != with && type != without)
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: '{}': block '{}' is not supported; supported: {}, {}",
                              keys.where(), key, for_message(type), with, without),
                  {.subject = key, .hint = "use a UNet of Stable Diffusion 1 or 2"});
    result.push_back(type == with);
  }
  return result;
}

}  // namespace

UNetOptions::UNetOptions(const JsonObject& keys)
    : in_channels(keys.size("in_channels", 4)),
      out_channels(keys.size("out_channels", 4)),
      layers(keys.size("layers_per_block", 2)),
      groups(keys.size("norm_num_groups", 32)),
      text_width(keys.size("cross_attention_dim", 1280)),
      epsilon(keys.number("norm_eps", 1e-5)),
      linear_projection(keys.flag("use_linear_projection", false)),
      sine_last(keys.flag("flip_sin_to_cos", true)),
      frequency_shift(keys.number("freq_shift", 0)) {
  require_class(keys, "UNet2DConditionModel");
  require_unset(keys, {"center_input_sample", "dual_cross_attention", "class_embed_type",
                       "addition_embed_type", "encoder_hid_dim", "encoder_hid_dim_type",
                       "num_class_embeds", "only_cross_attention", "time_cond_proj_dim",
                       "timestep_post_act", "time_embedding_act_fn", "time_embedding_dim",
                       "reverse_transformer_layers_per_block", "class_embeddings_concat"});
  require_value(keys, "act_fn", "silu");
  require_value(keys, "mid_block_type", "UNetMidBlock2DCrossAttn");
  require_value(keys, "time_embedding_type", "positional");
  require_value(keys, "resnet_time_scale_shift", "default");
  for (const auto& [key, wanted] :
       {std::pair("transformer_layers_per_block", 1), std::pair("conv_in_kernel", 3),
        std::pair("conv_out_kernel", 3), std::pair("downsample_padding", 1)}) {
    if (keys.has(key) && keys.raw(key) != wanted)
      keys.refuse(key, fmt::format("must be {}; other values are not supported", wanted),
                  "use a UNet of Stable Diffusion 1 or 2");
  }
  channels = channels_of(keys, groups);
  down_attends = attending(
      keys, "down_block_types", "CrossAttnDownBlock2D", "DownBlock2D",
      {"CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"});
  up_attends =
      attending(keys, "up_block_types", "CrossAttnUpBlock2D", "UpBlock2D",
                {"UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"});
  if (down_attends.size() != channels.size() || up_attends.size() != channels.size())
    keys.refuse("block_out_channels", "must have one element for each down block and each up block",
                "use the config.json of a UNet2DConditionModel");
  // For historical reasons, "attention_head_dim" is the number of heads.
  const char* const key =
      keys.has("num_attention_heads") ? "num_attention_heads" : "attention_head_dim";
  heads = keys.integers(key);
  if (heads.empty()) heads = {8};
  if (heads.size() == 1) heads.resize(channels.size(), heads[0]);
  for (size_t level = 0; level < channels.size(); ++level) {
    if (heads.size() != channels.size() || heads[level] < 1 || channels[level] % heads[level] != 0)
      keys.refuse(key, "does not divide 'block_out_channels'",
                  "use the config.json of a UNet2DConditionModel");
  }
}

struct UNet::Parts {
  explicit Parts(const JsonObject& keys) : options(keys) {}
  UNetOptions options;
  torch::nn::Conv2d in{nullptr}, out{nullptr};
  torch::nn::Linear time1{nullptr}, time2{nullptr};
  std::vector<DownBlock> down;
  MiddleBlock middle{nullptr};
  std::vector<UpBlock> up;
  torch::nn::GroupNorm norm{nullptr};
};

UNet::UNet(const ModelConfig& config)
    : Module("UNet2DConditionModel"), parts_(std::make_shared<Parts>(config.keys())) {
  Parts& p = *parts_;
  const UNetOptions& o = p.options;
  in_channels_ = o.in_channels;
  text_width_ = o.text_width;
  const int64_t first = o.channels[0];
  p.in = register_module("conv_in", convolution(o.in_channels, first, 3));
  PartsOf time = register_module("time_embedding", PartsOf());
  p.time1 = time->add("linear_1", linear(first, 4 * first, /*bias=*/true));
  p.time2 = time->add("linear_2", linear(4 * first, 4 * first, /*bias=*/true));
  torch::nn::ModuleList down, up;
  for (size_t i = 0; i < o.channels.size(); ++i) {
    down->push_back(p.down.emplace_back(o, i));
    up->push_back(p.up.emplace_back(o, i));
  }
  register_module("down_blocks", down);
  p.middle = register_module("mid_block", MiddleBlock(o));
  register_module("up_blocks", up);
  p.norm = register_module("conv_norm_out", group_norm(o.groups, first, o.epsilon));
  p.out = register_module("conv_out", convolution(first, o.out_channels, 3));
}

UNet::~UNet() = default;

at::Tensor UNet::forward(const at::Tensor& latents, int64_t timestep, const at::Tensor& states) {
  Parts& p = *parts_;
  const UNetOptions& o = p.options;
  const int64_t half = o.channels[0] / 2;
  const double falls = -std::log(10000.0) / (static_cast<double>(half) - o.frequency_shift);
  const at::Tensor angles =
      at::arange(half, at::TensorOptions(at::kFloat)).mul(falls).exp().mul(timestep);
  const at::Tensor time =
      (o.sine_last ? at::cat({angles.cos(), angles.sin()}) : at::cat({angles.sin(), angles.cos()}))
          .to(latents.options())
          .unsqueeze(0);
  // All blocks take the time embedding after silu.
  const Conditioning conditioning{at::silu(p.time2->forward(at::silu(p.time1->forward(time)))),
                                  states};
  at::Tensor x = p.in->forward(latents);
  std::vector<at::Tensor> skips{x};
  for (DownBlock& block : p.down) x = block->forward(std::move(x), conditioning, skips);
  x = p.middle->forward(std::move(x), conditioning);
  for (UpBlock& block : p.up) x = block->forward(std::move(x), conditioning, skips);
  return p.out->forward(normed_silu(p.norm, x));
}

uint64_t UNet::activation_bytes(int64_t batch, int64_t height, int64_t width) const {
  const UNetOptions& o = parts_->options;
  double most = 0, skips = 0;
  double pixels = static_cast<double>(batch * height * width);
  for (size_t level = 0; level < o.channels.size(); ++level, pixels /= 4) {
    const auto channels = static_cast<double>(o.channels[level]);
    const double below =
        static_cast<double>(o.channels[std::min(level + 1, o.channels.size() - 1)]);
    skips += pixels * channels * static_cast<double>(o.layers + 1);
    // Either the widest linear layer (8 times the channels, 4 of them kept) with its input and the
    // residual, or the images of the first up block and a convolution's copies of them.
    const double wide = 8 + 4 + 3;
    const double image = 4 * (below + channels) / channels + 2;
    const double kernel = (below + channels) * channels * 9;  // as convolutions reorder it
    most = std::max(most, pixels * channels * std::max(wide, image) + kernel);
  }
  return static_cast<uint64_t>((most + skips) * sizeof(float));
}

}  // namespace coupler::diffusion
