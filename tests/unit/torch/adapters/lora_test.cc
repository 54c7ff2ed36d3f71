// LoRA on unmodified modules: the same numbers as the formula written out, whatever calls the
// layer; choosing layers; merging; and errors.
#include <ATen/autocast_mode.h>
#include <coupler/activation_checkpoint.h>
#include <coupler/autocast.h>
#include <coupler/error.h>
#include <coupler/lora.h>
#include <coupler/quantize.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "refusal.h"

namespace coupler {
namespace {

namespace nn = torch::nn;

// Layers called in every way: Linear with and without bias, 1, 2 and 3 dimensions, torch::linear
// and addmm on the weight. `middle` and `own` are square: their transposes have the same sizes.
struct LayersImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = at::tanh(in(x));
    y = at::tanh(middle(y));
    y = y + torch::linear(y, own->weight);
    const at::Tensor rows = y.reshape({-1, 8});
    const at::Tensor added = torch::addmm(own_bias, rows, transposed->weight);
    return out(added.reshape_as(y));
  }
  nn::Linear in = register_module("in", nn::Linear(5, 8));
  nn::Linear middle = register_module("middle", nn::Linear(nn::LinearOptions(8, 8).bias(false)));
  nn::Linear own = register_module("own", nn::Linear(nn::LinearOptions(8, 8).bias(false)));
  // Its weight is used as [in, out].
  struct TransposedImpl : nn::Module {
    TransposedImpl() : Module("Transposed") {}
    at::Tensor weight = register_parameter("weight", torch::randn({8, 8}));
  };
  std::shared_ptr<TransposedImpl> transposed =
      register_module("transposed", std::make_shared<TransposedImpl>());
  at::Tensor own_bias = register_parameter("own_bias", torch::randn({8}));
  nn::Linear out = register_module("out", nn::Linear(8, 3));
};
TORCH_MODULE(Layers);

Layers layers() {
  torch::manual_seed(2);
  Layers model;
  model->to(torch::kDouble);
  return model;
}

LoraOptions all_layers() {
  return {.rank = 3,
          .alpha = 2,
          .target_modules = {"in", "middle", "own", "transposed", "out"},
          .transposed_classes = {"Transposed"}};
}

// B as after training: random.
void fill_products(const LoraAdapter& adapter) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : adapter.parameters()) parameter.normal_(0, 0.3);
}

at::Tensor input(at::IntArrayRef sizes = {4, 2, 5}) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(7), torch::kDouble);
}

// The formula, with weights that are W + scaling · B A.
at::Tensor written_out(Layers& model, const LoraAdapter& adapter, double scaling,
                       const at::Tensor& x) {
  const std::vector<at::Tensor> p = adapter.parameters();
  const auto product = [&](size_t layer) { return scaling * p[2 * layer + 1].mm(p[2 * layer]); };
  const auto plain = [](const at::Tensor& w) { return w.detach().clone(); };
  at::Tensor y =
      at::tanh(torch::linear(x, plain(model->in->weight) + product(0), plain(model->in->bias)));
  y = at::tanh(torch::linear(y, plain(model->middle->weight) + product(1)));
  y = y + torch::linear(y, plain(model->own->weight) + product(2));
  const at::Tensor rows = y.reshape({-1, 8});
  const at::Tensor added =
      rows.mm(plain(model->transposed->weight) + product(3).t()) + plain(model->own_bias);
  return torch::linear(added.reshape_as(y), plain(model->out->weight) + product(4),
                       plain(model->out->bias));
}

std::vector<at::Tensor> gradients_of(const at::Tensor& output, const LoraAdapter& adapter,
                                     const at::Tensor& x) {
  std::vector<at::Tensor> inputs = adapter.parameters();
  inputs.push_back(x);
  return torch::autograd::grad({output.square().sum()}, inputs);
}

TEST(Lora, EveryWayToCallALayer_ComputesTheFormula) {
  Layers model = layers();
  const at::Tensor before = model->forward(input());
  const LoraAdapter adapter = lora(model, all_layers());
  EXPECT_TRUE(model->forward(input()).equal(before));  // B is 0
  fill_products(adapter);
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{4, 2, 5}, std::vector<int64_t>{6, 5}, std::vector<int64_t>{5}}) {
    const at::Tensor x = input(sizes).requires_grad_(true);
    const at::Tensor output = model->forward(x);
    const at::Tensor expected = written_out(model, adapter, 2.0 / 3, x);
    EXPECT_TRUE(output.allclose(expected, 1e-10, 1e-10)) << sizes;
    const auto given = gradients_of(output, adapter, x);
    const auto wanted = gradients_of(expected, adapter, x);
    for (size_t i = 0; i < given.size(); ++i)
      EXPECT_TRUE(given[i].allclose(wanted[i], 1e-9, 1e-9)) << sizes << " " << i;
  }
  const torch::InferenceMode inference;
  const at::Tensor x = input();
  EXPECT_TRUE(model->forward(x).allclose(written_out(model, adapter, 2.0 / 3, x), 1e-10, 1e-10));
}

TEST(Lora, OtherThreadsAndRecomputedParts_UseIt) {
  Layers model = layers();
  const LoraAdapter adapter = lora(model, all_layers());
  fill_products(adapter);
  const at::Tensor x = input().requires_grad_(true);
  const at::Tensor output = model->forward(x);
  const auto expected = gradients_of(output, adapter, x);
  at::Tensor elsewhere;
  std::thread([&] { elsewhere = model->forward(x); }).join();
  EXPECT_TRUE(elsewhere.equal(output));
  for (const at::Tensor& parameter : adapter.parameters()) parameter.mutable_grad().reset();
  activation_checkpoint([&](const at::Tensor& in) { return model->forward(in); }, x)
      .square()
      .sum()
      .backward();
  const auto parameters = adapter.parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    EXPECT_TRUE(parameters[i].grad().allclose(expected[i])) << i;
}

// Gradients of gradients.
TEST(Lora, SecondDerivative_IsTheFormulas) {
  Layers model = layers();
  const LoraAdapter adapter = lora(model, all_layers());
  fill_products(adapter);
  const auto second = [&](const std::function<at::Tensor(const at::Tensor&)>& compute) {
    const at::Tensor x = input().requires_grad_(true);
    const auto first = torch::autograd::grad({compute(x).square().sum()}, {x}, {}, true, true);
    return torch::autograd::grad({first[0].square().sum()}, adapter.parameters());
  };
  const auto given = second([&](const at::Tensor& x) { return model->forward(x); });
  const auto wanted =
      second([&](const at::Tensor& x) { return written_out(model, adapter, 2.0 / 3, x); });
  for (size_t i = 0; i < given.size(); ++i)
    EXPECT_TRUE(given[i].allclose(wanted[i], 1e-8, 1e-8)) << i;
}

TEST(Lora, OnlyAdaptersAreTrained_AndHoldOptimizerState) {
  Layers model = layers();
  const LoraAdapter adapter = lora(model, all_layers());
  int64_t trainable = 0;
  std::vector<at::Tensor> frozen;
  for (const at::Tensor& parameter : model->parameters()) {
    if (parameter.requires_grad())
      trainable += parameter.numel();
    else
      frozen.push_back(parameter.detach().clone());
  }
  int64_t adapters = 0;
  for (const at::Tensor& parameter : adapter.parameters()) adapters += parameter.numel();
  EXPECT_EQ(trainable, adapters);
  EXPECT_EQ(adapters, 3 * (5 + 8) + 3 * (3 * (8 + 8)) + 3 * (8 + 3));
  // Also of an optimizer that was given everything.
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.1));
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    model->forward(input()).square().sum().backward();
    optimizer.step();
  }
  int64_t state = 0;
  for (const auto& [key, value] : optimizer.state()) {
    const auto& moments = static_cast<const torch::optim::AdamWParamState&>(*value);
    state += moments.exp_avg().numel() + moments.exp_avg_sq().numel();
  }
  EXPECT_EQ(state, 2 * adapters);
  size_t i = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    if (parameter.requires_grad()) continue;
    EXPECT_TRUE(parameter.equal(frozen[i++]));
  }
}

TEST(Lora, ModuleTo_KeepsIt) {
  Layers model = layers();
  const LoraAdapter adapter = lora(model, all_layers());
  fill_products(adapter);
  const at::Tensor expected = model->forward(input());
  model->to(torch::kFloat);
  const at::Tensor output = model->forward(input().to(torch::kFloat));
  EXPECT_EQ(output.scalar_type(), torch::kFloat);
  EXPECT_TRUE(output.to(torch::kDouble).allclose(expected, 1e-4, 1e-5));
  model->to(torch::kDouble);
  EXPECT_TRUE(model->forward(input()).allclose(expected, 1e-4, 1e-5));
}

TEST(Lora, NarrowBaseAndAutocast_ComputeInTheTypesOfPeft) {
  Layers model = layers();
  model->to(torch::kBFloat16);
  LoraOptions options = all_layers();
  options.target_modules = {"in", "middle"};
  const LoraAdapter adapter = lora(model, options);
  for (const at::Tensor& parameter : adapter.parameters())
    EXPECT_EQ(parameter.scalar_type(), torch::kFloat);
  fill_products(adapter);
  const at::Tensor x = input().to(torch::kBFloat16);
  const at::Tensor base = torch::linear(x, model->in->weight.detach().clone());
  const auto p = adapter.parameters();
  const at::Tensor product =
      torch::linear(torch::linear(x.to(torch::kFloat), p[0]), p[1]) * (2.0 / 3);
  const at::Tensor output = model->in->forward(x);
  EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(output.allclose((base + product).to(torch::kBFloat16) + model->in->bias, 1e-2, 1e-2));
  EXPECT_FALSE(output.allclose(base + model->in->bias, 1e-2, 1e-2));

  Layers whole = layers();
  whole->to(torch::kFloat);
  const LoraAdapter of_whole = lora(whole, options);
  fill_products(of_whole);
  const AutocastScope scope(AutocastSettings{torch::kCPU, torch::kBFloat16});
  const at::Tensor mixed = whole->in->forward(input().to(torch::kFloat));
  EXPECT_EQ(mixed.scalar_type(), torch::kBFloat16);
  mixed.sum().backward();
  EXPECT_EQ(of_whole.parameters()[0].grad().scalar_type(), torch::kFloat);
}

TEST(Lora, Dropout_IsInTrainingModeOnly) {
  Layers model = layers();
  LoraOptions options = all_layers();
  options.dropout = 0.5;
  model->eval();
  const LoraAdapter adapter = lora(model, options);
  fill_products(adapter);
  const at::Tensor expected = written_out(model, adapter, 2.0 / 3, input());
  EXPECT_TRUE(model->forward(input()).allclose(expected, 1e-10, 1e-10));
  model->train();
  EXPECT_FALSE(model->forward(input()).allclose(expected, 1e-3, 1e-3));
  model->eval();
  EXPECT_TRUE(model->forward(input()).allclose(expected, 1e-10, 1e-10));
}

TEST(Lora, Rslora_DividesByTheRoot) {
  Layers model = layers();
  LoraOptions options = all_layers();
  options.rslora = true;
  const LoraAdapter adapter = lora(model, options);
  fill_products(adapter);
  const at::Tensor expected = written_out(model, adapter, 2 / std::sqrt(3.0), input());
  EXPECT_TRUE(model->forward(input()).allclose(expected, 1e-10, 1e-10));
}

TEST(Lora, MergeUnmergeDisableRemove_GiveTheSameOutputs) {
  Layers model = layers();
  const at::Tensor without = model->forward(input());
  const LoraAdapter adapter = lora(model, all_layers());
  fill_products(adapter);
  const at::Tensor with = model->forward(input());
  const auto same = [&](const at::Tensor& expected) {
    return model->forward(input()).allclose(expected, 1e-10, 1e-10);
  };
  for (int twice = 0; twice < 2; ++twice) adapter.merge();
  EXPECT_TRUE(adapter.merged());
  EXPECT_TRUE(same(with));
  for (int twice = 0; twice < 2; ++twice) adapter.unmerge();
  EXPECT_TRUE(same(with));
  adapter.set_enabled(false);
  EXPECT_TRUE(same(without));
  adapter.set_enabled(true);
  adapter.remove();
  EXPECT_TRUE(same(without));
  EXPECT_FALSE(model->named_parameters().contains("in.lora_A.weight"));
  EXPECT_TRUE(adapter.layers().empty());
  // A layer may get another one.
  const LoraAdapter next = lora(model, all_layers());
  fill_products(next);
  next.merge_and_unload();
  EXPECT_FALSE(same(without));
}

TEST(Lora, ProductsLiveWithTheModel) {
  Layers model = layers();
  at::Tensor with;
  {
    const LoraAdapter adapter = lora(model, all_layers());
    fill_products(adapter);
    with = model->forward(input());
  }
  EXPECT_TRUE(model->forward(input()).equal(with));
}

// "0", "1.0" and "2" are linear, "1" is not.
struct TreeImpl : nn::Module {
  TreeImpl() {
    register_module("0", nn::Linear(2, 2));
    register_module("1", nn::ModuleList(nn::Linear(2, 2)));
    register_module("2", nn::Linear(2, 2));
  }
};

TEST(Lora, Targets_MatchAsInPeft) {
  const auto chosen = [](LoraOptions options) {
    TreeImpl model;
    options.rank = 1;
    return lora(model, options).layers();
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(chosen({.target_modules = {"all-linear"}}), (Names{"0", "1.0", "2"}));
  EXPECT_EQ(chosen({.target_modules = {"0"}}), (Names{"0", "1.0"}));
  EXPECT_EQ(chosen({.target_modules = {"1.0", "2"}}), (Names{"1.0", "2"}));
  EXPECT_EQ(chosen({.target_pattern = "[01](\\.0)?", .exclude_modules = {"1"}}),
            (Names{"0", "1.0"}));
  EXPECT_EQ(chosen({.target_modules = {"all-linear"}, .exclude_modules = {"1.0"}}),
            (Names{"0", "2"}));
}

TEST(Lora, AttentionsOutput_IsAdapted_ThoughItsForwardIsNotCalled) {
  nn::MultiheadAttention attention(8, 2);
  const at::Tensor x = at::randn({3, 1, 8});
  const LoraAdapter adapter = lora(attention, {.rank = 2, .target_modules = {"out_proj"}});
  const at::Tensor before = std::get<0>(attention->forward(x, x, x));
  fill_products(adapter);
  const at::Tensor after = std::get<0>(attention->forward(x, x, x));
  EXPECT_FALSE(after.allclose(before));
  adapter.merge();
  EXPECT_TRUE(std::get<0>(attention->forward(x, x, x)).allclose(after, 1e-5, 1e-5));
}

struct UnsupportedImpl : nn::Module {
  nn::Conv2d conv = register_module("conv", nn::Conv2d(1, 1, 3));
  nn::Embedding embedding = register_module("embedding", nn::Embedding(4, 8));
  nn::Linear head = register_module("head", nn::Linear(8, 4));
  nn::Linear twin = register_module("twin", nn::Linear(8, 4));
  nn::Linear small = register_module("small", nn::Linear(8, 2));
  at::Tensor shared = register_parameter("shared", twin->weight);
};

void expect_refused(const std::function<void()>& action, const std::vector<std::string>& parts) {
  const std::string message = testing::message_of(action);
  EXPECT_NE(message.find("hint: "), std::string::npos) << message;
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << "\n  in: " << message;
}

TEST(Lora, WhatCannotBeDone_IsNamed_AndLeavesTheModelAsItWas) {
  UnsupportedImpl model;
  const auto names = model.named_parameters().keys();
  const auto refused = [&](const LoraOptions& options, const std::vector<std::string>& parts) {
    expect_refused([&] { lora(model, options); }, parts);
    EXPECT_EQ(model.named_parameters().keys(), names);
    EXPECT_TRUE(model.small->weight.requires_grad());
  };
  refused({.rank = 2, .target_modules = {"small", "query"}},
          {"'query' matches no module", "head, twin, small"});
  refused({.rank = 2, .target_pattern = "query.*"}, {"'query.*' matches no module"});
  refused({.rank = 2, .target_pattern = "("}, {"not a regular expression"});
  refused({.rank = 2, .target_modules = {"small"}, .exclude_modules = {"key"}},
          {"exclude_modules: 'key' matches no module"});
  refused({.rank = 2, .target_modules = {"small"}, .exclude_modules = {"small"}},
          {"leaves no layer"});
  refused({.rank = 2}, {"neither target_modules nor target_pattern"});
  refused({.rank = 2, .target_modules = {"small"}, .target_pattern = "small"}, {"both"});
  refused({.rank = 2, .target_modules = {"all-linear", "small"}}, {"all-linear"});
  refused({.rank = 2, .target_modules = {"small", "conv"}},
          {"'conv'", "torch::nn::Conv2dImpl", "only linear layers"});
  refused({.rank = 2, .target_modules = {"embedding"}}, {"'embedding'", "only linear layers"});
  refused({.rank = 2, .target_modules = {"twin"}}, {"'twin'", "its weight is also 'shared'"});
  refused({.rank = 3, .target_modules = {"head", "small"}}, {"rank 3", "'small'", "2 x 8"});
  refused({.rank = 0, .target_modules = {"small"}}, {"rank is 0"});
  refused({.rank = 1, .dropout = 1, .target_modules = {"small"}}, {"dropout is 1"});
  refused({.rank = 1, .alpha = std::nan(""), .target_modules = {"small"}}, {"alpha is nan"});
  const LoraAdapter adapter = lora(model, {.rank = 2, .target_modules = {"small"}});
  expect_refused([&] { lora(model, {.rank = 2, .target_modules = {"small"}}); },
                 {"'small'", "already has one"});
  // Other layers may get another adapter; the first stays trainable.
  const LoraAdapter other = lora(model, {.rank = 2, .target_modules = {"head"}});
  for (const LoraAdapter* each : {&adapter, &other}) {
    for (const at::Tensor& parameter : each->parameters()) EXPECT_TRUE(parameter.requires_grad());
  }
}

}  // namespace
}  // namespace coupler
