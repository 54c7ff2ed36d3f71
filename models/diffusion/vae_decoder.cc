#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/var_mean.h>
#include <coupler/error.h>
#include <coupler/text_to_image.h>
#include <fmt/format.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "diffusion/parts.h"
#include "json_file.h"
#include "nets/layers.h"

namespace coupler::diffusion {

// Strips: an image divided into strips of rows. Layers consume and free one strip at a time, so no
// full activation is in memory twice. The division depends only on the image's shape. Used by one
// thread.

namespace {

using Strips = std::vector<at::Tensor>;  // from the top, each [batch, channels, rows, width]

// A copy of a convolution's weights for many strips, so that weights on disk are fetched only once.
struct Kernel {
  explicit Kernel(torch::nn::Conv2d& layer)
      : weight(layer->weight.clone()), bias(layer->bias.clone()) {}
  at::Tensor weight, bias;
};

// silu(norm(image)) with a GroupNorm: each channel's scale and shift, from the statistics of all
// strips.
struct NormedSilu {
  // Combines variances by Chan's method, in double, so that the result does not depend on the
  // number of strips.
  NormedSilu(torch::nn::GroupNorm& norm, const Strips& image) {
    const int64_t batch = image[0].size(0), channels = image[0].size(1);
    const int64_t groups = norm->options.num_groups();
    at::Tensor mean, square;  // [batch, groups]: mean, and sum of squared distances from it
    double count = 0;
    for (const at::Tensor& strip : image) {
      auto [variance, average] =
          at::var_mean(strip.view({batch, groups, -1}), at::IntArrayRef{-1}, /*unbiased=*/false);
      variance = variance.to(at::kDouble);
      average = average.to(at::kDouble);
      const double own = static_cast<double>(strip.numel()) / static_cast<double>(batch * groups);
      if (count == 0) {
        mean = average;
        square = variance.mul(own);
      } else {
        const at::Tensor apart = average.sub(mean);
        square = square.add(variance, own).add(apart.square(), count * own / (count + own));
        mean = mean.add(apart, own / (count + own));
      }
      count += own;
    }
    const at::Tensor rate = square.div(count).add(norm->options.eps()).rsqrt();
    const auto of_channels = [&](const at::Tensor& of_groups) {
      return of_groups.repeat_interleave(channels / groups, 1);
    };
    const at::Tensor factor = of_channels(rate).mul(norm->weight.to(at::kDouble));
    const at::Tensor added = norm->bias.to(at::kDouble).sub(of_channels(mean).mul(factor));
    const auto shaped = [&](const at::Tensor& x) {
      return x.to(image[0].scalar_type()).view({batch, channels, 1, 1});
    };
    scale = shaped(factor);
    shift = shaped(added);
  }
  // In place.
  void apply(at::Tensor& rows) const {
    rows.mul_(scale).add_(shift);
    at::silu_(rows);
  }
  at::Tensor scale, shift;  // [batch, channels, 1, 1]
};

// Copies the image.
Strips divided(const at::Tensor& image, int64_t rows) {
  Strips strips;
  for (int64_t at = 0; at < image.size(2); at += rows)
    strips.push_back(image.narrow(2, at, std::min(rows, image.size(2) - at))
                         .clone(at::MemoryFormat::Contiguous));
  return strips;
}

// A 3 × 3 convolution of strip `index`. before: applied first if given; twice: upsamples by 2
// before the convolution. Also reads the adjacent strips.
at::Tensor convolve(const Strips& image, size_t index, const Kernel& kernel,
                    const NormedSilu* before, bool twice = false) {
  const at::Tensor& own = image[index];
  const int64_t rows = own.size(2), width = own.size(3);
  // The neighboring strips' rows above and below, or zeros.
  at::Tensor input = at::empty({own.size(0), own.size(1), rows + 2, width}, own.options());
  const bool first = index == 0, last = index + 1 == image.size();
  input.narrow(2, 1, rows).copy_(own);
  if (!first) input.narrow(2, 0, 1).copy_(image[index - 1].slice(2, -1));
  if (!last) input.narrow(2, rows + 1, 1).copy_(image[index + 1].narrow(2, 0, 1));
  if (before != nullptr) before->apply(input);
  if (first) input.narrow(2, 0, 1).zero_();
  if (last) input.narrow(2, rows + 1, 1).zero_();
  if (twice) {
    input = at::upsample_nearest2d(input, {2 * (rows + 2), 2 * width});
    input = input.narrow(2, 1, 2 * rows + 2).contiguous();
  }
  return at::conv2d(input, kernel.weight, kernel.bias, /*stride=*/1,
                    /*padding=*/at::IntArrayRef{0, 1});
}

// The same for all strips; each is freed as soon as possible.
Strips convolve(Strips image, const Kernel& kernel, const NormedSilu* before, bool twice = false) {
  Strips result;
  for (size_t i = 0; i < image.size(); ++i) {
    result.push_back(convolve(image, i, kernel, before, twice));
    if (i > 0) image[i - 1].reset();
  }
  return result;
}

constexpr double kEpsilon = 1e-6;
constexpr int64_t kLatentRows = 4;  // latent rows per strip

// Each strip becomes a residual and an inner strip; if the number of channels halves, both
// together are at most as large as the strip was.
Strips forward_strips(Resnet& resnet, Strips x) {
  const NormedSilu before1(resnet->norm1, x);
  const Kernel kernel1(resnet->conv1);
  Strips inner, around;
  std::optional<Kernel> kernel_around;
  if (resnet->shortcut) kernel_around.emplace(resnet->shortcut);
  for (size_t i = 0; i < x.size(); ++i) {
    inner.push_back(convolve(x, i, kernel1, &before1));
    around.push_back(kernel_around ? at::conv2d(x[i], kernel_around->weight, kernel_around->bias)
                                   : x[i]);
    if (i > 0) x[i - 1].reset();
  }
  x.clear();
  const NormedSilu before2(resnet->norm2, inner);
  const Kernel kernel2(resnet->conv2);
  for (size_t i = 0; i < inner.size(); ++i) {
    around[i].add_(convolve(inner, i, kernel2, &before2));
    if (i > 0) inner[i - 1].reset();
  }
  return around;
}

// One head that attends to all pixels.
struct VaeAttentionImpl : torch::nn::Module {
  VaeAttentionImpl(int64_t width, int64_t groups) : Module("Attention") {
    norm = register_module("group_norm", group_norm(groups, width, kEpsilon));
    to_q = register_module("to_q", linear(width, width, /*bias=*/true));
    to_k = register_module("to_k", linear(width, width, /*bias=*/true));
    to_v = register_module("to_v", linear(width, width, /*bias=*/true));
    to_out = register_module("to_out", PartsOf())->add("0", linear(width, width, /*bias=*/true));
  }
  at::Tensor forward(const at::Tensor& x) {
    // [batch, 1, pixels, width]
    const at::Tensor pixels = norm->forward(x).flatten(2).transpose(1, 2).contiguous().unsqueeze(1);
    const at::Tensor query = to_q->forward(pixels), key = to_k->forward(pixels);
    const at::Tensor seen = at::scaled_dot_product_attention(query, key, to_v->forward(pixels));
    return to_out->forward(seen).squeeze(1).transpose(1, 2).reshape_as(x).add(x);
  }
  torch::nn::GroupNorm norm{nullptr};
  torch::nn::Linear to_q{nullptr}, to_k{nullptr}, to_v{nullptr}, to_out{nullptr};
};
TORCH_MODULE(VaeAttention);

struct UpLevel {
  std::vector<Resnet> resnets;
  torch::nn::Conv2d larger{nullptr};
};

}  // namespace

struct VaeDecoder::Parts {
  std::vector<int64_t> channels;  // per level, from the top
  torch::nn::Conv2d post_quant{nullptr}, in{nullptr}, out{nullptr};
  Resnet first{nullptr}, second{nullptr};
  VaeAttention attention{nullptr};
  std::vector<UpLevel> up;
  torch::nn::GroupNorm norm{nullptr};
};

VaeDecoder::VaeDecoder(const ModelConfig& config)
    : Module("AutoencoderKL"), parts_(std::make_shared<Parts>()) {
  const JsonObject& keys = config.keys();
  require_class(keys, "AutoencoderKL");
  require_value(keys, "act_fn", "silu");
  require_unset(keys, {"shift_factor", "latents_mean", "latents_std"});
  Parts& p = *parts_;
  latent_channels_ = keys.size("latent_channels", 4);
  scaling_factor_ = keys.number("scaling_factor", 0.18215);
  const int64_t groups = keys.size("norm_num_groups", 32),
                layers = keys.size("layers_per_block", 1);
  p.channels = channels_of(keys, groups);
  factor_ = int64_t{1} << (p.channels.size() - 1);
  for (const std::string& type : keys.texts("up_block_types")) {
    if (type == "UpDecoderBlock2D") continue;
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: 'up_block_types': block '{}' is not supported; only UpDecoderBlock2D is",
                    keys.where(), type),
        {.subject = "up_block_types", .hint = "use a VAE of Stable Diffusion 1 or 2"});
  }
  const int64_t deepest = p.channels.back();
  if (keys.flag("use_post_quant_conv", true))
    p.post_quant =
        register_module("post_quant_conv", convolution(latent_channels_, latent_channels_, 1));
  PartsOf decoder = register_module("decoder", PartsOf());
  p.in = decoder->add("conv_in", convolution(latent_channels_, deepest, 3));
  PartsOf middle = decoder->add("mid_block", PartsOf());
  torch::nn::ModuleList resnets, attentions, ups;
  resnets->push_back(p.first = Resnet(deepest, deepest, groups, kEpsilon));
  resnets->push_back(p.second = Resnet(deepest, deepest, groups, kEpsilon));
  middle->add("resnets", resnets);
  if (keys.flag("mid_block_add_attention", true)) {
    attentions->push_back(p.attention = VaeAttention(deepest, groups));
    middle->add("attentions", attentions);
  }
  int64_t width = deepest;
  for (size_t level = p.channels.size(); level-- > 0;) {
    UpLevel up;
    PartsOf block;
    torch::nn::ModuleList list;
    for (int64_t i = 0; i <= layers; ++i, width = p.channels[level])
      list->push_back(up.resnets.emplace_back(width, p.channels[level], groups, kEpsilon));
    block->add("resnets", list);
    if (level > 0)
      up.larger = block->add("upsamplers", PartsOf())
                      ->add("0", PartsOf())
                      ->add("conv", convolution(width, width, 3));
    ups->push_back(block);
    p.up.push_back(std::move(up));
  }
  decoder->add("up_blocks", ups);
  p.norm = decoder->add("conv_norm_out", group_norm(groups, width, kEpsilon));
  p.out = decoder->add("conv_out", convolution(width, keys.size("out_channels", 3), 3));
}

VaeDecoder::~VaeDecoder() = default;

at::Tensor VaeDecoder::forward(const at::Tensor& latents) {
  Parts& p = *parts_;
  at::Tensor x = p.post_quant ? p.post_quant->forward(latents) : latents;
  x = p.first->forward(p.in->forward(x));
  if (p.attention) x = p.attention->forward(x);
  x = p.second->forward(x);
  Strips strips = divided(x, kLatentRows);
  x.reset();
  for (UpLevel& level : p.up) {
    for (Resnet& resnet : level.resnets) strips = forward_strips(resnet, std::move(strips));
    if (level.larger)
      strips = convolve(std::move(strips), Kernel(level.larger), nullptr, /*twice=*/true);
  }
  const NormedSilu before(p.norm, strips);
  return at::cat(convolve(std::move(strips), Kernel(p.out), &before), 2);
}

uint64_t VaeDecoder::activation_bytes(int64_t batch, int64_t height, int64_t width) const {
  const std::vector<int64_t>& channels = parts_->channels;
  const auto deepest = static_cast<double>(channels.back());
  const double pixels = static_cast<double>(batch * height * width);
  // In the middle: attention's inputs, and its scores, which some devices materialize.
  double most = pixels * (6 * deepest + 2.0 * static_cast<double>(height * width));
  double scale = 1;
  for (size_t level = channels.size(); level-- > 0; scale *= 4) {
    const size_t below = std::min(level + 1, channels.size() - 1);
    const auto own = static_cast<double>(channels[level]);
    // The residual and the inner image, plus strips: with a row on either side, upsampled, and as
    // convolutions reorder them.
    const double all = std::max(2 * own, static_cast<double>(channels[below])) * pixels * scale;
    const double strip = static_cast<double>(batch * width * (kLatentRows + 2)) * scale *
                         static_cast<double>(channels[below]);
    most = std::max(most, all + 6 * strip);
  }
  return static_cast<uint64_t>((most + 2 * 9 * deepest * deepest) * sizeof(float));
}

// Before diffusers 0.17, attention layers had other names.
std::string vae_checkpoint_name(const std::string& name) {
  if (name.starts_with("encoder.") || name.starts_with("quant_conv.")) return "";
  constexpr std::array<std::pair<const char*, const char*>, 4> kOlder = {
      {{".query.", ".to_q."},
       {".key.", ".to_k."},
       {".value.", ".to_v."},
       {".proj_attn.", ".to_out.0."}}};
  for (const auto& [older, today] : kOlder) {
    if (const size_t at = name.find(older); at != std::string::npos)
      return std::string(name).replace(at, std::string_view(older).size(), today);
  }
  return name;
}

}  // namespace coupler::diffusion
