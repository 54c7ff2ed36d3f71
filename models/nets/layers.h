// Small modules that architectures share. Used by one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>

namespace coupler {

class JsonObject;

// y = x Wᵀ (+ b) with W of shape [out, in], which may be tied to another module's embeddings.
class HeadImpl : public torch::nn::Module {
 public:
  HeadImpl(int64_t in, int64_t out, bool bias, const at::Tensor& tied = {});
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_, bias_;
};
TORCH_MODULE(Head);

torch::nn::Linear linear(int64_t in, int64_t out, bool bias);
torch::nn::LayerNorm layer_norm(int64_t width, double epsilon);

// "gelu_new", "silu", … Throws Error(kUnsupported) with the key, the value and the supported ones.
using Activation = at::Tensor (*)(const at::Tensor&);
Activation activation_of(const JsonObject& config, const char* key, const std::string& otherwise);

}  // namespace coupler
