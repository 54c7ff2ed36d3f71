// Sums through a codec: against sums in double, and with error feedback over many steps.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "simulated_ranks.h"
#include "strategy/compressed_collectives.h"

namespace coupler::strategy {
namespace {

std::shared_ptr<const GradientCodec> codec_of(const std::string& kind, int64_t block = 32) {
  config::CommunicationConfig config;
  config.gradients = kind;
  config.int8_block = block;
  return make_codec(config);
}

struct CodedJob {
  // padding: the last `padding` of n elements are not gradients.
  CodedJob(const std::string& kind, int64_t n, int ranks, int64_t padding = 0) {
    const auto codec = codec_of(kind);
    for (int r = 0; r < ranks; ++r) {
      memory.push_back(at::zeros({n}));
      errors.push_back(codec->needs_error_feedback() ? at::zeros({n}) : at::Tensor());
      reductions.push_back(std::make_unique<CompressedAllReduce>(
          memory.back(), errors.back(), codec,
          std::vector<at::Tensor>{memory.back().narrow(0, n - padding, padding)}, r, ranks));
    }
  }
  // Sums one gradient per rank; the same bits on every rank.
  at::Tensor sum(const std::vector<at::Tensor>& gradients) {
    for (size_t r = 0; r < memory.size(); ++r) memory[r].copy_(gradients[r]);
    reduce_together(reductions);
    for (const at::Tensor& other : memory) {
      EXPECT_TRUE(at::equal(other.view(at::kInt), memory[0].view(at::kInt)));
    }
    return memory[0].clone();
  }
  std::vector<at::Tensor> memory, errors;
  std::vector<std::unique_ptr<BucketReduction>> reductions;
};

std::vector<at::Tensor> draw(int ranks, int64_t n) {
  std::vector<at::Tensor> result;
  for (int r = 0; r < ranks; ++r) result.push_back(at::randn({n}));
  return result;
}

at::Tensor true_sum(const std::vector<at::Tensor>& gradients) {
  at::Tensor sum = at::zeros_like(gradients[0], at::kDouble);
  for (const at::Tensor& gradient : gradients) sum += gradient;
  return sum;
}

struct Precision {
  const char* kind;
  double rounding;  // of one encoding, relative to the largest encoded value
};

TEST(CompressedAllReduce, AnyRanksAndSizes_SumIsTrueUpToTwoRoundings) {
  at::manual_seed(1);
  for (const Precision& precision : {Precision{"bf16", 1.0 / 256}, Precision{"fp16", 1.0 / 2048},
                                     Precision{"int8", 0.5 / 127}}) {
    for (const int ranks : {2, 3, 5}) {
      for (const int64_t n : {1, 7, 31, 64, 100, 1000, 4099, 200003}) {
        CodedJob job(precision.kind, n, ranks);
        const auto gradients = draw(ranks, n);
        const at::Tensor expected = true_sum(gradients), got = job.sum(gradients);
        double most = expected.abs().max().item<double>();
        for (const at::Tensor& gradient : gradients) most += gradient.abs().max().item<double>();
        const double difference = (got - expected).abs().max().item<double>();
        EXPECT_LE(difference, 1.01 * precision.rounding * most + 1e-6)
            << precision.kind << ", " << ranks << " ranks, " << n << " elements";
      }
    }
  }
}

TEST(CompressedAllReduce, ErrorFeedback_WhatSumsLackIsWhatRanksCarry) {
  at::manual_seed(2);
  constexpr int kRanks = 3, kSteps = 60;
  constexpr int64_t kElements = 500;
  CodedJob job("int8", kElements, kRanks);
  at::Tensor all_true = at::zeros({kElements}, at::kDouble), all_sent = all_true.clone();
  for (int step = 0; step < kSteps; ++step) {
    const auto gradients = draw(kRanks, kElements);
    all_true += true_sum(gradients);
    all_sent += job.sum(gradients);
  }
  at::Tensor carried = at::zeros({kElements}, at::kDouble);
  for (const at::Tensor& error : job.errors) carried += error;
  EXPECT_LE((all_true - all_sent - carried).abs().max().item<double>(), 1e-3);
  // No more than a few roundings of one step, however many steps are taken.
  EXPECT_LE(carried.abs().max().item<double>(), 0.15);
}

TEST(CompressedAllReduce, OneElementNotFinite_IsSeenByEveryRankAndIsGoneInTheNextStep) {
  at::manual_seed(3);
  for (const char* kind : {"bf16", "fp16", "int8"}) {
    for (const double bad :
         {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      for (const int64_t place : {3, 90}) {  // in this rank's own part, and in the other rank's
        CodedJob job(kind, 100, 2);
        auto gradients = draw(2, 100);
        gradients[0][place] = bad;
        EXPECT_FALSE(at::isfinite(job.sum(gradients)).all().item<bool>()) << kind;
        EXPECT_TRUE(at::isfinite(job.sum(draw(2, 100))).all().item<bool>()) << kind;
      }
    }
  }
}

// Otherwise padding would turn the first block of the next gradients into NaN.
TEST(CompressedAllReduce, Padding_IsZeroBehindAnOverflow) {
  at::manual_seed(5);
  constexpr int64_t kElements = 100, kPadding = 4;  // in the block of the last elements
  for (const char* kind : {"fp16", "int8"}) {
    CodedJob job(kind, kElements, 2, kPadding);
    auto gradients = draw(2, kElements);
    for (at::Tensor& gradient : gradients)
      gradient.narrow(0, kElements - kPadding, kPadding).zero_();
    gradients[1][kElements - kPadding - 1] = std::numeric_limits<double>::infinity();
    const at::Tensor sum = job.sum(gradients);
    EXPECT_FALSE(at::isfinite(sum).all().item<bool>()) << kind;
    EXPECT_EQ(sum.narrow(0, kElements - kPadding, kPadding).abs().max().item<double>(), 0) << kind;
  }
}

TEST(GradientCodec, TooLargeForFp16_BecomesInfinite) {
  const at::Tensor values = at::full({4}, 1e6F), code = at::zeros({8}, at::kByte);
  codec_of("fp16")->encode(values, code, {});
  at::Tensor decoded = at::zeros({4});
  codec_of("fp16")->decode(code, decoded, false);
  EXPECT_TRUE(at::isinf(decoded).all().item<bool>());
}

TEST(GradientCodec, Int8_ResidualIsWhatDecodingLacks) {
  at::manual_seed(4);
  const auto codec = codec_of("int8", 8);
  for (const int64_t n : {5, 8, 21, 64}) {
    const at::Tensor values = at::randn({n}) * at::pow(10.0, at::randint(-6, 6, {n}));
    const at::Tensor code = at::zeros({codec->bytes(n)}, at::kByte);
    at::Tensor residual = at::empty({n}), decoded = at::zeros({n});
    codec->encode(values, code, residual);
    codec->decode(code, decoded, false);
    EXPECT_TRUE(at::allclose(decoded + residual, values, 1e-6, 1e-12)) << n;
  }
}

TEST(GradientCodec, Int8_ZerosStayZeros) {
  const auto codec = codec_of("int8", 8);
  const at::Tensor values = at::zeros({20}), code = at::zeros({codec->bytes(20)}, at::kByte);
  at::Tensor decoded = at::ones({20});
  codec->encode(values, code, {});
  codec->decode(code, decoded, false);
  EXPECT_TRUE(at::equal(decoded, values));
}

}  // namespace
}  // namespace coupler::strategy
