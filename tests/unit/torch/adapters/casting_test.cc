// Layerwise casting: storage, results, what is skipped, LoRA on top, and errors.
#include <coupler/error.h>
#include <coupler/layerwise_casting.h>
#include <coupler/lora.h>
#include <coupler/quantize.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <functional>
#include <string>
#include <vector>

#include "refusal.h"

namespace coupler {
namespace {

namespace nn = torch::nn;
using Names = std::vector<std::string>;

struct ImagesImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = at::relu(conv(x)).flatten(2).transpose(1, 2);
    y = norm(at::relu(inner(y)));
    return torch::linear(y, shared) + head(y);
  }
  nn::Conv2d conv = register_module("conv", nn::Conv2d(3, 8, 3));
  nn::Linear inner = register_module("inner", nn::Linear(8, 8));
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})));
  nn::Linear head = register_module("head", nn::Linear(8, 5));
  nn::Linear tied = register_module("tied", nn::Linear(nn::LinearOptions(8, 5).bias(false)));
  at::Tensor shared = register_parameter("shared", tied->weight);
};
TORCH_MODULE(Images);

Images images() {
  torch::manual_seed(6);
  return Images();
}
at::Tensor image() { return at::randn({2, 3, 5, 5}, at::make_generator<at::CPUGeneratorImpl>(1)); }

TEST(LayerwiseCasting, Results_AreThoseOfRoundedWeights) {
  for (const at::ScalarType storage : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kBFloat16}) {
    Images model = images(), rounded = images();
    LayerwiseCastingOptions options{.storage_dtype = storage, .compute_dtype = at::kFloat};
    options.skip_modules_pattern = {"^he"};
    const auto casting = attach_layerwise_casting(model, options);
    EXPECT_EQ(casting.parameters(),
              (Names{"conv.weight", "conv.bias", "inner.weight", "inner.bias"}));
    for (const char* name : {"conv", "inner"}) {
      for (at::Tensor& parameter : rounded->named_children()[name]->parameters())
        parameter.set_data(parameter.to(storage).to(at::kFloat));
    }
    EXPECT_EQ(model->inner->weight.scalar_type(), storage);
    EXPECT_EQ(model->inner->weight.nbytes(), 64 * c10::elementSize(storage));
    EXPECT_EQ(model->head->weight.scalar_type(), at::kFloat);
    // LibTorch may choose another kernel for a view of a converted weight.
    EXPECT_TRUE(model->forward(image()).allclose(rounded->forward(image()), 1e-5, 1e-6));
    EXPECT_FALSE(model->forward(image()).allclose(images()->forward(image()), 1e-5, 1e-6));
    const torch::InferenceMode inference;
    EXPECT_TRUE(model->forward(image()).allclose(rounded->forward(image()), 1e-5, 1e-6));
  }
}

TEST(LayerwiseCasting, AdaptersTrainOnTop) {
  Images model = images();
  LayerwiseCastingOptions options{.compute_dtype = at::kFloat};
  options.skip_modules_classes = {"torch::nn::LayerNorm", "Conv2d"};
  const auto casting = attach_layerwise_casting(model, options);
  const at::Tensor before = model->forward(image());
  const LoraAdapter adapter = lora(model, {.rank = 2, .target_modules = {"inner", "head"}});
  EXPECT_TRUE(model->forward(image()).equal(before));
  model->forward(image()).square().sum().backward();
  const auto parameters = adapter.parameters();
  EXPECT_GT(parameters[1].grad().abs().max().item<float>(), 0);  // of B; that of A is 0
  {
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& parameter : parameters) parameter.normal_();
  }
  EXPECT_FALSE(model->forward(image()).allclose(before));
}

TEST(LayerwiseCasting, WrongOptionsAndModels_AreRefused_AndLeaveTheModelAsItWas) {
  Images model = images();
  const auto refuse = [&](const LayerwiseCastingOptions& options, const std::string& part) {
    const std::string message =
        testing::message_of([&] { const auto casting = attach_layerwise_casting(model, options); });
    EXPECT_NE(message.find(part), std::string::npos) << part << "\n  in: " << message;
    EXPECT_NE(message.find("hint: "), std::string::npos) << message;
    EXPECT_EQ(model->inner->weight.scalar_type(), at::kFloat);
    EXPECT_TRUE(model->inner->weight.requires_grad());
  };
  refuse({.storage_dtype = at::kInt}, "stored in Int");
  refuse({.storage_dtype = at::kBFloat16, .compute_dtype = at::kFloat8_e5m2}, "compute_dtype");
  refuse({.skip_modules_pattern = {"query"}}, "skip_modules_pattern 'query' matches no module");
  refuse({.skip_modules_pattern = {"("}}, "not a regular expression");
  refuse({.skip_modules_classes = {"Conv3d"}}, "skip_modules_classes 'Conv3d' matches no module");
  refuse({.skip_modules_pattern = {"Conv2d"}, .skip_modules_classes = {"Conv2d"}},
         "skip_modules_pattern 'Conv2d' matches no module");
  refuse({.skip_modules_pattern = {"."}}, "no layers to cast");
  const auto kept = quantize(model, {.bits = 8});
  const std::string message =
      testing::message_of([&] { const auto casting = attach_layerwise_casting(model); });
  EXPECT_NE(message.find("quantized"), std::string::npos) << message;
}

}  // namespace
}  // namespace coupler
