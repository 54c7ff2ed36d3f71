// What UNet and VAE are made of. Plain functions and modules of one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace coupler {
class JsonObject;
}

namespace coupler::diffusion {

// A module that has others, by whatever names checkpoints give them: "0", "2", "net".
struct PartsOfImpl : torch::nn::Module {
  PartsOfImpl() : Module("PartsOf") {}
  template <class Holder>
  Holder add(const std::string& name, Holder part) {
    return register_module(name, std::move(part));
  }
};
TORCH_MODULE(PartsOf);

// size × size with the padding that keeps an image's size; stride 2 halves it.
torch::nn::Conv2d convolution(int64_t in, int64_t out, int64_t size, int64_t stride = 1);
torch::nn::GroupNorm group_norm(int64_t groups, int64_t channels, double epsilon);
// silu(norm(x)), with one tensor of x's size beside x.
at::Tensor normed_silu(torch::nn::GroupNorm& norm, const at::Tensor& x);

// Throws Error(kUnsupported) where "_class_name" is another than `wanted`.
void require_class(const JsonObject& keys, const char* wanted);
// Throws Error(kUnsupported) where the key has another value than that, or null, or is missing.
void require_value(const JsonObject& keys, const char* key, const std::string& wanted);
// Throws Error(kUnsupported) where a key is there and neither null nor false nor 0.
void require_unset(const JsonObject& keys, const std::vector<const char*>& names);
// "block_out_channels": at least one, each a multiple of the groups.
std::vector<int64_t> channels_of(const JsonObject& keys, int64_t groups);

}  // namespace coupler::diffusion
