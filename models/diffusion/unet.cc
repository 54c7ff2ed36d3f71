#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
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
namespace {

// The attention blocks: pixels attend to each other and to the text.

struct TransformerOptions {
  int64_t channels, heads, groups, text_width;
  bool linear;  // projections are linear layers; otherwise 1 × 1 convolutions
};

struct CrossAttentionImpl : torch::nn::Module {
  // states_width: the width of the attended states.
  CrossAttentionImpl(int64_t width, int64_t of_heads, int64_t states_width) : heads(of_heads) {
    to_q = register_module("to_q", linear(width, width, /*bias=*/false));
    to_k = register_module("to_k", linear(states_width, width, /*bias=*/false));
    to_v = register_module("to_v", linear(states_width, width, /*bias=*/false));
    to_out = register_module("to_out", PartsOf())->add("0", linear(width, width, /*bias=*/true));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& states) {
    return to_out->forward(
        attend_in_heads(to_q->forward(x), to_k->forward(states), to_v->forward(states), heads));
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
TORCH_MODULE(TransformerBlock);

// diffusers' Transformer2DModel.
struct TransformerImpl : torch::nn::Module {
  explicit TransformerImpl(const TransformerOptions& o) : Module("Transformer2DModel") {
    norm = register_module("norm", group_norm(o.groups, o.channels, 1e-6));
    if (o.linear) {
      linear_in = register_module("proj_in", linear(o.channels, o.channels, /*bias=*/true));
    } else {
      conv_in = register_module("proj_in", convolution(o.channels, o.channels, 1));
    }
    block = register_module("transformer_blocks", PartsOf())->add("0", TransformerBlock(o));
    if (o.linear) {
      linear_out = register_module("proj_out", linear(o.channels, o.channels, /*bias=*/true));
    } else {
      conv_out = register_module("proj_out", convolution(o.channels, o.channels, 1));
    }
  }
  // x: [batch, channels, height, width]; states: [batch, tokens, text width].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& states) {
    const auto pixels = [](const at::Tensor& image) { return image.flatten(2).transpose(1, 2); };
    const auto image = [&](const at::Tensor& rows) { return rows.transpose(1, 2).reshape_as(x); };
    at::Tensor y = norm->forward(x);
    y = linear_in ? linear_in->forward(pixels(y)) : pixels(conv_in->forward(y)).contiguous();
    y = block->forward(std::move(y), states);
    y = linear_out ? image(linear_out->forward(y)) : conv_out->forward(image(y));
    return y.add_(x);
  }
  torch::nn::GroupNorm norm{nullptr};
  torch::nn::Conv2d conv_in{nullptr}, conv_out{nullptr};
  torch::nn::Linear linear_in{nullptr}, linear_out{nullptr};
  TransformerBlock block{nullptr};
};
TORCH_MODULE(Transformer);

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

struct UNetOptions {
  explicit UNetOptions(const JsonObject& keys)
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
      keys.refuse("block_out_channels",
                  "must have one element for each down block and each up block",
                  "use the config.json of a UNet2DConditionModel");
    // For historical reasons, "attention_head_dim" is the number of heads.
    const char* const key =
        keys.has("num_attention_heads") ? "num_attention_heads" : "attention_head_dim";
    heads = keys.integers(key);
    if (heads.empty()) heads = {8};
    if (heads.size() == 1) heads.resize(channels.size(), heads[0]);
    for (size_t level = 0; level < channels.size(); ++level) {
      if (heads.size() != channels.size() || heads[level] < 1 ||
          channels[level] % heads[level] != 0)
        keys.refuse(key, "does not divide 'block_out_channels'",
                    "use the config.json of a UNet2DConditionModel");
    }
  }

  TransformerOptions transformer(size_t level) const {
    return {.channels = channels[level],
            .heads = heads[level],
            .groups = groups,
            .text_width = text_width,
            .linear = linear_projection};
  }
  Resnet resnet(int64_t in, int64_t out) const {
    return Resnet(in, out, groups, epsilon, /*time_width=*/4 * channels[0]);
  }

  int64_t in_channels, out_channels, layers, groups, text_width;
  double epsilon;
  bool linear_projection, sine_last;
  double frequency_shift;
  std::vector<int64_t> channels, heads;
  std::vector<bool> down_attends, up_attends;
};

// The down, middle and up blocks.

// Inputs that accompany an image through a UNet.
struct Conditioning {
  at::Tensor time;    // as for Resnet
  at::Tensor states;  // the encoded text
};

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

// diffusers' DownBlock2D and CrossAttnDownBlock2D.
struct DownBlockImpl : torch::nn::Module {
  DownBlockImpl(const UNetOptions& o, size_t level)
      : Module(o.down_attends[level] ? "CrossAttnDownBlock2D" : "DownBlock2D") {
    const int64_t out = o.channels[level];
    for (int64_t i = 0; i < o.layers; ++i) {
      const int64_t in = i > 0 ? out : o.channels[level == 0 ? 0 : level - 1];
      resnets.push_back(o.resnet(in, out));
      if (o.down_attends[level]) transformers.emplace_back(o.transformer(level));
    }
    add_list(*this, "attentions", transformers);
    add_list(*this, "resnets", resnets);
    if (level + 1 < o.channels.size()) smaller = add_sampler(*this, "downsamplers", out, 2);
  }
  // Appends each intermediate image to skips.
  at::Tensor forward(at::Tensor x, const Conditioning& conditioning,
                     std::vector<at::Tensor>& skips) {
    for (size_t i = 0; i < resnets.size(); ++i) {
      x = resnets[i]->forward(x, conditioning.time);
      if (!transformers.empty()) x = transformers[i]->forward(x, conditioning.states);
      skips.push_back(x);
    }
    if (smaller) skips.push_back(x = smaller->forward(x));
    return x;
  }
  std::vector<Resnet> resnets;
  std::vector<Transformer> transformers;
  torch::nn::Conv2d smaller{nullptr};
};
TORCH_MODULE(DownBlock);

struct MiddleBlockImpl : torch::nn::Module {
  explicit MiddleBlockImpl(const UNetOptions& o) : Module("UNetMidBlock2DCrossAttn") {
    const size_t level = o.channels.size() - 1;
    const int64_t width = o.channels[level];
    transformer = Transformer(o.transformer(level));
    first = o.resnet(width, width);
    second = o.resnet(width, width);
    add_list<Transformer>(*this, "attentions", {transformer});
    add_list<Resnet>(*this, "resnets", {first, second});
  }
  at::Tensor forward(at::Tensor x, const Conditioning& conditioning) {
    x = transformer->forward(first->forward(x, conditioning.time), conditioning.states);
    return second->forward(x, conditioning.time);
  }
  Resnet first{nullptr}, second{nullptr};
  Transformer transformer{nullptr};
};
TORCH_MODULE(MiddleBlock);

// diffusers' UpBlock2D and CrossAttnUpBlock2D.
struct UpBlockImpl : torch::nn::Module {
  // step: counts from the bottom; 0 is the lowest level.
  UpBlockImpl(const UNetOptions& o, size_t step)
      : Module(o.up_attends[step] ? "CrossAttnUpBlock2D" : "UpBlock2D") {
    const size_t levels = o.channels.size(), level = levels - 1 - step;
    const int64_t out = o.channels[level];
    const int64_t below = o.channels[std::min(level + 1, levels - 1)];
    const int64_t above = o.channels[level == 0 ? 0 : level - 1];
    for (int64_t i = 0; i <= o.layers; ++i) {
      const int64_t in = (i == 0 ? below : out) + (i == o.layers ? above : out);
      resnets.push_back(o.resnet(in, out));
      if (o.up_attends[step]) transformers.emplace_back(o.transformer(level));
    }
    add_list(*this, "attentions", transformers);
    add_list(*this, "resnets", resnets);
    if (level > 0) larger = add_sampler(*this, "upsamplers", out, 1);
  }
  // Pops its inputs from the end of skips.
  at::Tensor forward(at::Tensor x, const Conditioning& conditioning,
                     std::vector<at::Tensor>& skips) {
    for (size_t i = 0; i < resnets.size(); ++i) {
      x = at::cat({x, skips.back()}, 1);
      skips.pop_back();
      x = resnets[i]->forward(x, conditioning.time);
      if (!transformers.empty()) x = transformers[i]->forward(x, conditioning.states);
    }
    if (!larger) return x;
    // Halving an odd size rounded up, so the skip gives the size.
    const at::Tensor& next = skips.back();
    x = at::upsample_nearest2d(x, {next.size(2), next.size(3)});
    return larger->forward(x);
  }
  std::vector<Resnet> resnets;
  std::vector<Transformer> transformers;
  torch::nn::Conv2d larger{nullptr};
};
TORCH_MODULE(UpBlock);

}  // namespace

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
