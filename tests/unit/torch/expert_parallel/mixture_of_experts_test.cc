// A mixture of experts in one process against a loop over tokens.
#include <coupler/error.h>
#include <coupler/mixture_of_experts.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "refusal.h"

namespace coupler {
namespace {

using testing::expect_error;
using Options = MixtureOfExpertsOptions;

MixtureOfExperts make_layer(const Options& options) {
  torch::manual_seed(7);
  MixtureOfExperts layer(options);
  layer->to(torch::kDouble);
  return layer;
}

at::Tensor expert_of_one_token(const MixtureOfExpertsImpl& layer, int64_t expert,
                               const at::Tensor& token) {
  const at::Tensor inner = layer.up[expert].mv(token);
  at::Tensor activated;
  switch (layer.options().activation) {
    case ExpertActivation::kSwiGlu: {
      const int64_t size = layer.options().inner;
      activated = at::silu(inner.narrow(0, 0, size)) * inner.narrow(0, size, size);
      break;
    }
    case ExpertActivation::kGelu:
      activated = at::gelu(inner);
      break;
    case ExpertActivation::kRelu:
      activated = at::relu(inner);
      break;
  }
  return layer.down[expert].mv(activated);
}

// Token by token, each expert taking at most `capacity` of them.
at::Tensor expected_of(const MixtureOfExpertsImpl& layer, const at::Tensor& tokens,
                       int64_t capacity) {
  const Options& options = layer.options();
  std::vector<int64_t> taken(static_cast<size_t>(options.experts), 0);
  std::vector<at::Tensor> results;
  for (const at::Tensor& token : tokens.unbind()) {
    const at::Tensor weights = layer.router->weight.mv(token).softmax(0);
    std::vector<int64_t> order(static_cast<size_t>(options.experts));
    for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int64_t>(e);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return weights[a].item<double>() > weights[b].item<double>();
    });
    order.resize(static_cast<size_t>(options.top_k));
    at::Tensor total = at::zeros({}, weights.options());
    for (const int64_t e : order) total = total + weights[e];
    at::Tensor result = at::zeros_like(token);
    for (const int64_t e : order) {
      if (taken[static_cast<size_t>(e)]++ >= capacity) continue;
      const at::Tensor weight = options.normalize_weights ? weights[e] / total : weights[e];
      result = result + weight * expert_of_one_token(layer, e, token);
    }
    results.push_back(result);
  }
  return at::stack(results);
}

void expect_like_the_loop(const Options& options, int64_t capacity) {
  auto layer = make_layer(options), other = make_layer(options);
  const at::Tensor tokens = at::randn({3, 5, options.features}, torch::kDouble);
  auto mine = tokens.clone().requires_grad_(true), theirs = tokens.clone().requires_grad_(true);
  const at::Tensor ours = layer->forward(mine);
  const at::Tensor expected =
      expected_of(*other, theirs.view({-1, options.features}), capacity).view(tokens.sizes());
  EXPECT_TRUE(at::allclose(ours, expected, 1e-9, 1e-12));
  const at::Tensor weights = at::randn(tokens.sizes(), torch::kDouble);
  (ours * weights).sum().backward();
  (expected * weights).sum().backward();
  EXPECT_TRUE(at::allclose(mine.grad(), theirs.grad(), 1e-9, 1e-12));
  const auto parameters = layer->named_parameters(), others = other->named_parameters();
  for (const auto& item : parameters) {
    EXPECT_TRUE(at::allclose(item.value().grad(), others[item.key()].grad(), 1e-9, 1e-12))
        << item.key();
  }
}

constexpr int64_t kEveryToken = 1 << 20;

TEST(MixtureOfExperts, EqualsALoopOverTokens) {
  expect_like_the_loop({.features = 6, .inner = 5, .experts = 4}, kEveryToken);
  expect_like_the_loop({.features = 6,
                        .inner = 5,
                        .experts = 8,
                        .top_k = 3,
                        .activation = ExpertActivation::kGelu,
                        .normalize_weights = false},
                       kEveryToken);
  expect_like_the_loop(
      {.features = 4, .inner = 9, .experts = 3, .top_k = 1, .activation = ExpertActivation::kRelu},
      kEveryToken);
}

// 15 tokens with 2 choices of 4 experts: 7.5 each on average.
TEST(MixtureOfExperts, ExpertsTakeAsManyTokensAsTheirCapacityAllows) {
  const Options options{.features = 6, .inner = 5, .experts = 4, .capacity_factor = 1};
  expect_like_the_loop(options, 8);
  auto layer = make_layer(options);
  (void)layer->forward(at::ones({15, 6}, torch::kDouble));  // all choose the same two
  EXPECT_EQ(layer->dropped_choices(), 2 * (15 - 8));
  EXPECT_EQ(layer->expert_tokens().sum().item<int64_t>(), 30);
  EXPECT_EQ(layer->expert_tokens().max().item<int64_t>(), 15);
}

TEST(MixtureOfExperts, ResultHasTheTypeAndShapeOfItsInput) {
  auto layer = MixtureOfExperts(Options{.features = 4, .inner = 4, .experts = 2});
  const at::Tensor one = layer->forward(at::randn({4}));
  EXPECT_EQ(one.sizes(), at::IntArrayRef({4}));
  EXPECT_EQ(layer->forward(at::randn({0, 4})).sizes(), at::IntArrayRef({0, 4}));
  EXPECT_EQ(layer->balance_loss().item<double>(), 0);
  layer->to(torch::kBFloat16);
  EXPECT_EQ(layer->forward(at::randn({3, 4}).to(at::kBFloat16)).scalar_type(), at::kBFloat16);
}

// experts * sum of (share of tokens * mean weight): 1 if a router prefers none.
TEST(MixtureOfExperts, BalanceLossIsThatOfTheSwitchTransformer) {
  auto layer = make_layer({.features = 6, .inner = 5, .experts = 4});
  const at::Tensor tokens = at::randn({9, 6}, torch::kDouble);
  (void)layer->forward(tokens);
  const at::Tensor weights = tokens.matmul(layer->router->weight.t()).softmax(-1);
  const at::Tensor chosen = std::get<1>(weights.topk(2, -1));
  double expected = 0;
  for (int64_t e = 0; e < 4; ++e) {
    const double share = chosen.eq(e).sum().item<double>() / 18;
    expected += 4 * share * weights.select(1, e).mean().item<double>();
  }
  EXPECT_NEAR(layer->balance_loss().item<double>(), expected, 1e-12);
  layer->balance_loss().backward();
  EXPECT_GT(layer->router->weight.grad().abs().sum().item<double>(), 0);
  const at::NoGradGuard no_grad;
  layer->router->weight.zero_();
  (void)layer->forward(tokens);
  EXPECT_NEAR(layer->balance_loss().item<double>(), 1, 1e-12);
}

TEST(MixtureOfExperts, OptionsAndInputsThatDoNotFit_AreNamed) {
  const auto expect_refused = [](const Options& options, const std::string& part) {
    expect_error(ErrorCode::kInvalidArgument, part, [&] { MixtureOfExperts layer(options); });
  };
  expect_refused({.features = 4, .inner = 4}, "experts is 0, not positive");
  expect_refused({.inner = 4, .experts = 2}, "features is 0, not positive");
  expect_refused({.features = 4, .inner = 4, .experts = 2, .top_k = 3},
                 "top_k is 3, but must be 1 to 2");
  expect_refused({.features = 4, .inner = 4, .experts = 2, .capacity_factor = 0.5},
                 "capacity_factor is 0.5, but must be 0 (no limit) or at least 1");
  MixtureOfExperts layer(Options{.features = 4, .inner = 4, .experts = 2});
  expect_error(ErrorCode::kInvalidArgument, "shape [2, 5], not floating", [&] {
    layer->forward(at::ones({2, 5}));
  });
  expect_error(ErrorCode::kInvalidArgument, "not floating-point", [&] {
    layer->forward(at::ones({2, 4}, at::kLong));
  });
  {
    const at::NoGradGuard no_grad;
    (void)layer->forward(at::ones({2, 4}));
  }
  expect_error(ErrorCode::kUsage, "kept nothing for backward, so its balance loss has no gradient",
               [&] { (void)layer->balance_loss(); });
}

}  // namespace
}  // namespace coupler
