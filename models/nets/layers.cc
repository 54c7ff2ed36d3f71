#include "nets/layers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <coupler/error.h>
#include <torch/nn/init.h>

#include "base/text.h"
#include "json_file.h"

namespace coupler {

HeadImpl::HeadImpl(int64_t in, int64_t out, bool bias, const at::Tensor& tied) : Module("Head") {
  const bool own = !tied.defined();
  weight_ = register_parameter("weight", own ? at::empty({out, in}) : tied);
  if (own) torch::nn::init::normal_(weight_, 0.0, 0.02);
  if (bias) bias_ = register_parameter("bias", at::zeros({out}));
}

at::Tensor HeadImpl::forward(const at::Tensor& x) { return at::linear(x, weight_, bias_); }

torch::nn::Linear linear(int64_t in, int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

torch::nn::LayerNorm layer_norm(int64_t width, double epsilon) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(epsilon));
}

Activation activation_of(const JsonObject& config, const char* key, const std::string& otherwise) {
  const std::string name = config.text(key, otherwise);
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast")
    return [](const at::Tensor& x) { return at::gelu(x, "tanh"); };
  if (name == "quick_gelu")
    return [](const at::Tensor& x) { return x.mul(at::sigmoid(x.mul(1.702))); };
  if (name == "gelu") return [](const at::Tensor& x) { return at::gelu(x); };
  if (name == "silu" || name == "swish") return [](const at::Tensor& x) { return at::silu(x); };
  if (name == "relu") return [](const at::Tensor& x) { return at::relu(x); };
  throw Error(
      ErrorCode::kUnsupported,
      config.where() + ": activation '" + for_message(name) + "' is not supported",
      {.subject = key, .hint = "use gelu_new, gelu_pytorch_tanh, quick_gelu, gelu, silu or relu"});
}

}  // namespace coupler
