// The loss of 16-bit logits is that of the same logits in fp32, and so is its gradient.
#include "precision/cross_entropy.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <optional>

namespace coupler::precision {
namespace {

struct Case {
  at::IntArrayRef logits;
  at::Tensor target;
  std::optional<at::Tensor> weight;
  int64_t ignored = -100;
  double smoothing = 0;
  int64_t part_bytes = kConvertedBytes;
};

struct Result {
  at::Tensor loss, gradient;  // the gradient of 3 times the sum of the losses
};

Result result_of(const at::Tensor& values, const Case& given, int64_t reduction, bool ours) {
  const at::Tensor logits = values.detach().clone().requires_grad_();
  const at::Tensor loss = ours ? cross_entropy(logits, given.target, given.weight, reduction,
                                               given.ignored, given.smoothing, given.part_bytes)
                               : at::cross_entropy_loss(logits, given.target, given.weight,
                                                        reduction, given.ignored, given.smoothing);
  (3 * loss).sum().backward();
  return {loss.detach(), logits.grad()};
}

void expect_as_in_fp32(const Case& given, at::ScalarType type, double scale = 4) {
  const at::Tensor values = (at::randn(given.logits) * scale).to(type);
  for (const int64_t reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
    const Result got = result_of(values, given, reduction, true);
    const Result want = result_of(values.to(at::kFloat), given, reduction, false);
    EXPECT_EQ(got.loss.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(got.loss, want.loss, 1e-5, 1e-6)) << got.loss << want.loss;
    EXPECT_EQ(got.gradient.scalar_type(), type);
    // Rounded once to the type of the logits, or twice.
    const double rounding = type == at::kHalf ? 0x1p-10 : 0x1p-7;
    EXPECT_TRUE(at::allclose(got.gradient.to(at::kFloat), want.gradient, rounding, 1e-6))
        << (got.gradient.to(at::kFloat) - want.gradient).abs().max();
  }
}

at::Tensor classes(int64_t rows, int64_t most) {
  return at::randint(most, {rows}, at::TensorOptions(at::kLong));
}

TEST(CrossEntropy, RandomLogits_GiveTheLossAndGradientOfFp32) {
  torch::manual_seed(1);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t rows : {1, 7, 64}) {
      expect_as_in_fp32({.logits = {rows, 11}, .target = classes(rows, 11)}, type);
    }
  }
}

TEST(CrossEntropy, Rows_MayBeConvertedInParts) {
  torch::manual_seed(5);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t bytes : {1, 100, 320}) {  // a row has 40
      expect_as_in_fp32({.logits = {17, 10}, .target = classes(17, 10), .part_bytes = bytes}, type);
    }
  }
}

TEST(CrossEntropy, IgnoredRows_CountNothing) {
  torch::manual_seed(2);
  at::Tensor target = classes(9, 5);
  target[2] = target[8] = -100;
  expect_as_in_fp32({.logits = {9, 5}, .target = target}, at::kBFloat16);
  expect_as_in_fp32({.logits = {9, 5}, .target = classes(9, 5), .ignored = 3}, at::kBFloat16);
}

TEST(CrossEntropy, ConfidentRows_KeepTheirSmallGradient) {
  torch::manual_seed(3);
  at::Tensor logits = at::zeros({4, 8});
  const at::Tensor target = at::arange(4);
  logits.scatter_(1, target.unsqueeze(1), 9);  // p = 0.999, which bf16 rounds to 1
  const Case given{.logits = {4, 8}, .target = target};
  const Result got = result_of(logits.to(at::kBFloat16), given, at::Reduction::Sum, true);
  const Result want = result_of(logits, given, at::Reduction::Sum, false);
  EXPECT_TRUE(at::allclose(got.gradient.to(at::kFloat), want.gradient, 0x1p-7, 0));
}

// Their gradient is far from zero after multiplication by a loss scale.
TEST(CrossEntropy, SmallProbabilities_SurviveFp16) {
  const at::Tensor logits = at::tensor({16.0F, 0.0F, 1.0F, 2.0F}).view({1, 4}).to(at::kHalf);
  const auto gradient = [&](const at::Tensor& values) {
    const at::Tensor leaf = values.clone().requires_grad_();
    const at::Tensor target = at::zeros({1}, at::kLong);
    (65536 * cross_entropy(leaf, target, {}, at::Reduction::Sum, -100, 0)).backward();
    return leaf.grad();
  };
  EXPECT_TRUE(
      at::allclose(gradient(logits).to(at::kFloat), gradient(logits.to(at::kFloat)), 0x1p-10, 0));
}

TEST(CrossEntropy, OtherForms_AreConvertedToFp32) {
  torch::manual_seed(4);
  expect_as_in_fp32({.logits = {6, 5}, .target = classes(6, 5), .weight = at::rand({5})},
                    at::kBFloat16);
  expect_as_in_fp32({.logits = {6, 5}, .target = classes(6, 5), .smoothing = 0.1}, at::kBFloat16);
  expect_as_in_fp32({.logits = {6, 5}, .target = at::softmax(at::randn({6, 5}), 1)}, at::kBFloat16);
  expect_as_in_fp32({.logits = {2, 5, 3}, .target = classes(6, 5).view({2, 3})}, at::kBFloat16);
}

TEST(CrossEntropy, ClassOutOfRange_IsAnError) {
  const Case given{.logits = {2, 3}, .target = at::full({2}, 3, at::kLong)};
  EXPECT_THROW(result_of(at::zeros({2, 3}, at::kBFloat16), given, at::Reduction::Mean, true),
               c10::Error);
}

}  // namespace
}  // namespace coupler::precision
