// bf16 by training.mixed_precision alone, without a scope in the program, against the losses of
// Accelerate with mixed_precision="bf16", from fixtures/make_losses.py. Those of fp32 are 0.01 to
// 0.05 away.
#include <coupler/accelerator.h>
#include <coupler/data_loader.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include <array>
#include <cmath>
#include <vector>

namespace coupler::precision {
namespace {

namespace nn = torch::nn;

constexpr std::array kConvNet{
    2.30388, 2.28929, 2.30335, 2.28746, 2.26860, 2.24107, 2.23331, 2.25232, 2.25089, 2.21671,
    2.19822, 2.20099, 2.22286, 2.20696, 2.16418, 2.17107, 2.18089, 2.20922, 2.16716, 2.10465,
    2.13732, 2.18268, 2.21324, 2.11770, 2.07723, 2.11036, 2.14464, 2.14897, 2.07680, 2.04104,
    2.07837, 2.09325, 2.06119, 2.04716, 2.03425, 2.04151, 2.03533, 1.98722, 1.99505, 2.02121,
    2.01055, 1.96117, 1.93362, 1.95348, 1.97134, 1.94472, 1.90844, 1.89556, 1.89449, 1.90599};
constexpr std::array kGpt{
    4.35140, 4.14871, 4.10342, 4.08797, 4.07197, 4.07141, 4.05256, 4.04499, 4.02911, 4.03376,
    3.99779, 3.99109, 3.98393, 3.99161, 3.93928, 3.93229, 3.93757, 3.94118, 3.87351, 3.86416,
    3.88039, 3.87585, 3.79327, 3.78528, 3.80759, 3.79514, 3.70936, 3.70500, 3.73334, 3.71643,
    3.63850, 3.63483, 3.66748, 3.64310, 3.56950, 3.56132, 3.60433, 3.57566, 3.49822, 3.49256,
    3.54334, 3.51584, 3.43139, 3.43331, 3.48326, 3.46252, 3.37188, 3.37763, 3.43222, 3.41291};

constexpr int64_t kSteps = 50, kClasses = 10;
constexpr int64_t kTokens = 61, kWidth = 32, kHeads = 4, kLength = 24;

at::Tensor waves(at::IntArrayRef shape, double seed) {
  const int64_t count = c10::multiply_integers(shape);
  return at::sin(at::arange(count, at::kDouble) * 1.3 + seed).reshape(shape);
}

void set_weights(nn::Module& model) {
  const at::NoGradGuard no_grad;
  double index = 0;
  for (const auto& item : model.named_parameters()) {
    at::Tensor parameter = item.value();
    if (parameter.dim() > 1) {
      const double scale = 1 / std::sqrt(static_cast<double>(parameter[0].numel()));
      parameter.copy_(waves(parameter.sizes(), index) * scale);
    } else if (item.key().ends_with("bias")) {
      parameter.zero_();  // a norm's weight is 1
    }
    ++index;
  }
}

struct ConvNet : nn::Module {
  at::Tensor forward(at::Tensor x) {
    x = at::max_pool2d(at::relu(norm(first(x))), 2);
    x = at::max_pool2d(at::relu(second(x)), 2);
    return last(x.flatten(1));
  }
  nn::Conv2d first = register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 8, 3).padding(1)));
  nn::BatchNorm2d norm = register_module("norm", nn::BatchNorm2d(8));
  nn::Conv2d second = register_module("second", nn::Conv2d(nn::Conv2dOptions(8, 16, 3).padding(1)));
  nn::Linear last = register_module("last", nn::Linear(16 * 9, kClasses));
};

// As in Python. For inputs of three dimensions, LibTorch's layer rounds the product before it adds
// the bias, which would move the losses by 3e-3.
at::Tensor linear_of(const nn::Linear& layer, const at::Tensor& x) {
  return at::linear(x, layer->weight, layer->bias);
}

struct Block : nn::Module {
  at::Tensor forward(at::Tensor x) {
    std::vector<at::Tensor> parts = linear_of(qkv, norm1(x)).chunk(3, -1);
    for (at::Tensor& part : parts) part = part.unflatten(-1, {kHeads, -1}).transpose(1, 2);
    const at::Tensor attended =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true);
    x = x + linear_of(out, attended.transpose(1, 2).flatten(2));
    return x + linear_of(down, at::gelu(linear_of(up, norm2(x))));
  }
  nn::LayerNorm norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  nn::Linear qkv = register_module("qkv", nn::Linear(kWidth, 3 * kWidth));
  nn::Linear out = register_module("out", nn::Linear(kWidth, kWidth));
  nn::LayerNorm norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  nn::Linear up = register_module("up", nn::Linear(kWidth, 4 * kWidth));
  nn::Linear down = register_module("down", nn::Linear(4 * kWidth, kWidth));
};

struct Gpt : nn::Module {
  at::Tensor forward(at::Tensor x) {
    x = tokens(x) + positions(at::arange(x.size(1)));
    return head(norm(second->forward(first->forward(x))));
  }
  nn::Embedding tokens = register_module("tokens", nn::Embedding(kTokens, kWidth));
  nn::Embedding positions = register_module("positions", nn::Embedding(kLength, kWidth));
  std::shared_ptr<Block> first = register_module("first", std::make_shared<Block>());
  std::shared_ptr<Block> second = register_module("second", std::make_shared<Block>());
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  nn::Linear head =
      register_module("head", nn::Linear(nn::LinearOptions(kWidth, kTokens).bias(false)));
};

// The batches of all steps, one after another.
TensorDataset images() {
  std::vector<at::Tensor> all;
  for (int64_t step = 0; step < kSteps; ++step)
    all.push_back(waves({16, 1, 12, 12}, static_cast<double>(step)).to(at::kFloat));
  const at::Tensor x = at::cat(all);
  return {x, x.flatten(1).narrow(1, 0, kClasses).argmax(1)};
}

TensorDataset texts() {
  std::vector<at::Tensor> all;
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor position = at::arange(8 * (kLength + 1)).reshape({8, kLength + 1});
    const at::Tensor shifted = position + 17 * (step % 4);
    all.push_back(shifted * shifted % kTokens);
  }
  const at::Tensor text = at::cat(all);
  return {text.narrow(1, 0, kLength).contiguous(), text.narrow(1, 1, kLength).contiguous()};
}

template <class Model>
void compare(const std::array<double, kSteps>& expected, const TensorDataset& data,
             int64_t batch_size) {
  Accelerator accelerator({.mixed_precision = "bf16"});
  auto model = std::make_shared<Model>();
  set_weights(*model);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  auto loader = data_loader(data, {.batch_size = batch_size});
  auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
  size_t step = 0;
  for (auto& batch : batches) {
    const at::Tensor output = net->forward(batch.data);
    const at::Tensor loss = at::cross_entropy_loss(output.flatten(0, -2), batch.target.flatten());
    accelerator.backward(loss);
    opt.step();
    opt.zero_grad();
    EXPECT_NEAR(loss.template item<double>(), expected.at(step), 2e-3) << "step " << step;
    ++step;
  }
  EXPECT_EQ(step, expected.size());
}

TEST(Autocast, FlagAloneOnAConvNet_HasAcceleratesLosses) {
  compare<ConvNet>(kConvNet, images(), 16);
}

TEST(Autocast, FlagAloneOnAGpt_HasAcceleratesLosses) { compare<Gpt>(kGpt, texts(), 8); }

}  // namespace
}  // namespace coupler::precision
