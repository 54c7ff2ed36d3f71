#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/silu.h>
#include <coupler/diffusion.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <cmath>

#include "base/file_text.h"
#include "diffusion/unet_blocks.h"
#include "json_file.h"
#include "nets/layers.h"

namespace coupler::diffusion {
namespace {

// Which blocks of a list attend to the text.
std::vector<bool> attending(const JsonObject& keys, const char* key, const std::string& with,
                            const std::string& without, std::vector<std::string> otherwise) {
  const std::vector<std::string> given = keys.texts(key);
  std::vector<bool> result;
  for (const std::string& type : given.empty() ? otherwise : given) {
    if (type != with && type != without)
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: '{}': block '{}' is not supported; supported: {}, {}",
                              keys.where(), key, shown(type), with, without),
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
  const Beside beside{at::silu(p.time2->forward(at::silu(p.time1->forward(time)))), states};
  at::Tensor x = p.in->forward(latents);
  std::vector<at::Tensor> skips{x};
  for (DownBlock& block : p.down) x = block->forward(std::move(x), beside, skips);
  x = p.middle->forward(std::move(x), beside);
  for (UpBlock& block : p.up) x = block->forward(std::move(x), beside, skips);
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
