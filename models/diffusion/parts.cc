#include "diffusion/parts.h"

#include <ATen/ops/silu.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include "base/text.h"
#include "json_file.h"
#include "nets/layers.h"

namespace coupler::diffusion {
namespace {

constexpr const char* kVersions = "use a model of Stable Diffusion 1 or 2";

}  // namespace

torch::nn::Conv2d convolution(int64_t in, int64_t out, int64_t size, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2));
}

torch::nn::GroupNorm group_norm(int64_t groups, int64_t channels, double epsilon) {
  return torch::nn::GroupNorm(torch::nn::GroupNormOptions(groups, channels).eps(epsilon));
}

at::Tensor normed_silu(torch::nn::GroupNorm& norm, const at::Tensor& x) {
  at::Tensor y = norm->forward(x);
  return at::silu_(y);
}

ResnetImpl::ResnetImpl(int64_t in, int64_t out, int64_t groups, double epsilon, int64_t time_width)
    : Module("ResnetBlock2D") {
  norm1 = register_module("norm1", group_norm(groups, in, epsilon));
  conv1 = register_module("conv1", convolution(in, out, 3));
  if (time_width > 0)
    time_proj = register_module("time_emb_proj", linear(time_width, out, /*bias=*/true));
  norm2 = register_module("norm2", group_norm(groups, out, epsilon));
  conv2 = register_module("conv2", convolution(out, out, 3));
  if (in != out) shortcut = register_module("conv_shortcut", convolution(in, out, 1));
}

at::Tensor ResnetImpl::forward(const at::Tensor& x, const at::Tensor& time) {
  at::Tensor y = conv1->forward(normed_silu(norm1, x));
  if (time_proj) y.add_(time_proj->forward(time).unsqueeze(-1).unsqueeze(-1));
  y = conv2->forward(normed_silu(norm2, y));
  return y.add_(shortcut ? shortcut->forward(x) : x);
}

void require_class(const JsonObject& keys, const char* wanted) {
  const std::string name = keys.text("_class_name");
  if (name == wanted) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: architecture '{}' is not supported; supported: CLIPTextModel "
                          "(text_encoder), UNet2DConditionModel (unet), AutoencoderKL (vae); "
                          "expected here: {}",
                          keys.where(), for_message(name), wanted),
              {.subject = "_class_name", .hint = kVersions});
}

void require_value(const JsonObject& keys, const char* key, const std::string& wanted) {
  const std::string value = keys.text(key, wanted);
  if (value == wanted) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: {} '{}' is not supported; only '{}' is", keys.where(), key,
                          for_message(value), wanted),
              {.subject = key, .hint = kVersions});
}

void require_unset(const JsonObject& keys, const std::vector<const char*>& names) {
  for (const char* const name : names) {
    if (!keys.has(name)) continue;
    const nlohmann::json& value = keys.raw(name);
    if (value == false || value == 0) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: '{}' is not supported", keys.where(), name),
                {.subject = name, .hint = kVersions});
  }
}

std::vector<int64_t> channels_of(const JsonObject& keys, int64_t groups) {
  std::vector<int64_t> channels = keys.integers("block_out_channels");
  if (channels.empty())
    keys.refuse("block_out_channels", "is missing", "use a config.json written by diffusers");
  for (const int64_t count : channels) {
    if (count < 1 || count % groups != 0)
      keys.refuse(
          "block_out_channels",
          fmt::format("has {}, which is not a multiple of 'norm_num_groups' ({})", count, groups),
          "use a config.json written by diffusers");
  }
  return channels;
}

}  // namespace coupler::diffusion
