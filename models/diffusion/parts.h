// Building blocks shared by UNet and VAE. Plain functions and modules, used by one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace coupler {
class JsonObject;
}

namespace coupler::diffusion {

// A size × size convolution, padded to keep the image's size; stride 2 halves it.
torch::nn::Conv2d convolution(int64_t in, int64_t out, int64_t size, int64_t stride = 1);
torch::nn::GroupNorm group_norm(int64_t groups, int64_t channels, double epsilon);
// silu(norm(x)), allocating one tensor of x's size.
at::Tensor normed_silu(torch::nn::GroupNorm& norm, const at::Tensor& x);

// Two convolutions with a residual connection; between them, the UNet adds the time embedding.
struct ResnetImpl : torch::nn::Module {
  // time_width: 0 in the VAE.
  ResnetImpl(int64_t in, int64_t out, int64_t groups, double epsilon, int64_t time_width = 0);
  // x: [batch, in, height, width]; time: [batch, time width], after silu.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& time = {});

  torch::nn::GroupNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, shortcut{nullptr};
  torch::nn::Linear time_proj{nullptr};
};
TORCH_MODULE(Resnet);

// Throws Error(kUnsupported) if "_class_name" is not `wanted`.
void require_class(const JsonObject& keys, const char* wanted);
// Throws Error(kUnsupported) if the key has a value other than `wanted`; null or missing is fine.
void require_value(const JsonObject& keys, const char* key, const std::string& wanted);
// Throws Error(kUnsupported) if a key is present and not null, false or 0.
void require_unset(const JsonObject& keys, const std::vector<const char*>& names);
// "block_out_channels": at least one, each a multiple of `groups`.
std::vector<int64_t> channels_of(const JsonObject& keys, int64_t groups);

}  // namespace coupler::diffusion
