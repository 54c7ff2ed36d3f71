// Products that exchange while they compute give what the whole layer gives, on ranks that are
// threads; e2e/mesh trains models with them.
#include "tensor_parallel/overlapped_product.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/accumulate.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <vector>

#include "core/comm/ranks.h"
#include "tensor_parallel/exchange.h"

namespace coupler::tensor_parallel {
namespace {

constexpr int64_t kIn = 4, kOut = 6;

at::Tensor numbers(at::IntArrayRef sizes, double first) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).add(first).sin().view(sizes);
}

at::Tensor trained(const at::Tensor& values) {
  return values.detach().clone().requires_grad_(true);
}

void expect_close(const at::Tensor& ours, const at::Tensor& expected, const char* what) {
  ASSERT_TRUE(ours.defined()) << what;
  EXPECT_TRUE(at::allclose(ours, expected, 1e-4, 1e-5)) << what;
}

void on_ranks(int ranks, const std::function<void(const Group&)>& function) {
  testing::expect_no_error(testing::run_ranks(ranks, [&](comm::Communicator& of_rank) {
    function(Group(&of_rank, [](comm::Communicator*) {}));
  }));
}

at::Tensor own_part(const at::Tensor& whole, int64_t dim, const Group& group) {
  const int64_t size = whole.size(dim) / group->size();
  return whole.narrow(dim, size * group->rank(), size);
}

// The whole layer's result and gradients, for the gradient `of_result`.
struct Whole {
  Whole(const at::Tensor& inputs, const at::Tensor& matrix, const at::Tensor& of_result)
      : x(trained(inputs)), weight(trained(matrix)), y(at::linear(x, weight)) {
    y.backward(of_result);
  }
  at::Tensor x, weight, y;
};

TEST(OverlappedProduct, Rowwise_ForAnyNumberOfChunks_IsTheWholeLayer) {
  const at::Tensor inputs = numbers({5, kIn}, 1), matrix = numbers({kOut, kIn}, 2),
                   of_result = numbers({5, kOut}, 3);
  const Whole whole(inputs, matrix, of_result);
  for (const int64_t chunks : {1, 2, 3, 8}) {
    on_ranks(2, [&](const Group& group) {
      const at::Tensor x = trained(own_part(inputs, 1, group)),
                       weight = trained(own_part(matrix, 1, group));
      const at::Tensor y =
          overlapped_product({x, weight, {}, /*out_in=*/true},
                             {.group = group, .result = ResultExchange::kSum, .chunks = chunks});
      expect_close(y, whole.y, "the result");
      y.backward(of_result);
      expect_close(x.grad(), own_part(whole.x.grad(), 1, group), "the input's gradient");
      expect_close(weight.grad(), own_part(whole.weight.grad(), 1, group), "the weight's gradient");
    });
  }
}

TEST(OverlappedProduct, RowwiseWithPartsOfTheSequence_IsThisRanksPart) {
  for (const int64_t dim : {0, 1}) {
    std::vector<int64_t> sizes = {3, 3, kIn};
    sizes[static_cast<size_t>(dim)] = 10;
    const at::Tensor inputs = numbers(sizes, 1), matrix = numbers({kOut, kIn}, 2);
    sizes.back() = kOut;
    const at::Tensor of_result = numbers(sizes, 3);
    const Whole whole(inputs, matrix, of_result);
    on_ranks(2, [&](const Group& group) {
      const at::Tensor x = trained(own_part(inputs, 2, group)),
                       weight = trained(own_part(matrix, 1, group).t());  // as [in, out]
      const at::Tensor y = overlapped_product(
          {x, weight, {}, /*out_in=*/false},
          {.group = group, .result = ResultExchange::kOwnTokens, .dim = dim, .chunks = 4});
      expect_close(y, own_part(whole.y, dim, group), "the result");
      y.backward(own_part(of_result, dim, group));
      expect_close(x.grad(), own_part(whole.x.grad(), 2, group), "the input's gradient");
      expect_close(weight.grad(), own_part(whole.weight.grad(), 1, group).t(),
                   "the weight's gradient");
    });
  }
}

// Layers with an input in common, each with its part of the outputs. uses: how many of them are in
// the loss. chunks: in which gathered tokens arrive.
void expect_shared_input(std::optional<int64_t> dim, size_t uses, int64_t chunks = 2) {
  const at::Tensor inputs = numbers({6, 4, kIn}, 1), of_result = numbers({6, 4, kOut}, 5);
  std::vector<at::Tensor> matrices, biases;
  at::Tensor of_inputs = at::zeros_like(inputs);
  std::vector<Whole> whole;
  for (size_t i = 0; i < 3; ++i) {
    matrices.push_back(numbers({kOut, kIn}, 10.0 * static_cast<double>(i)));
    biases.push_back(numbers({kOut}, 7.0 * static_cast<double>(i)));
    whole.emplace_back(inputs, matrices[i], of_result);
    if (i < uses) of_inputs.add_(whole[i].x.grad());
  }
  on_ranks(2, [&](const Group& group) {
    const at::Tensor x = trained(dim ? own_part(inputs, *dim, group) : inputs);
    std::vector<at::Tensor> weights, offsets, results, gradients;
    for (size_t i = 0; i < 3; ++i) {
      const LayerInput input = input_for_overlap(x, at::kFloat, dim, chunks, group);
      EXPECT_EQ(input.arriving != nullptr, dim && i == 0) << "only the first layer waits for them";
      weights.push_back(trained(own_part(matrices[i], 0, group)));
      offsets.push_back(trained(own_part(biases[i], 0, group)));
      results.push_back(overlapped_product(
          {input.values, weights[i], offsets[i], /*out_in=*/true},
          {.group = group, .input = input.gradient, .arriving = input.arriving}));
      expect_close(results[i], own_part(whole[i].y + biases[i], 2, group), "a result");
      gradients.push_back(own_part(of_result, 2, group));
    }
    at::Tensor loss = at::zeros({});
    for (size_t i = 0; i < uses; ++i) loss = loss + (results[i] * gradients[i]).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    const at::Tensor expected = dim ? own_part(of_inputs, *dim, group) : of_inputs;
    expect_close(x.grad(), 2 * expected, "the input's gradient, twice");
    for (size_t i = 0; i < uses; ++i) {
      expect_close(weights[i].grad(), 2 * own_part(whole[i].weight.grad(), 0, group),
                   "a weight's gradient, twice");
      expect_close(offsets[i].grad(), 2 * gradients[i].sum(at::IntArrayRef{0, 1}),
                   "a bias's gradient, twice");
    }
  });
}

TEST(OverlappedProduct, ColwiseLayersOfOneInput_ShareTheSumOfItsGradient) {
  expect_shared_input(std::nullopt, 3);
  for (const int64_t chunks : {1, 2, 8}) {
    expect_shared_input(1, 3, chunks);
    expect_shared_input(0, 3, chunks);
  }
}

TEST(ArrivingTokens, Finished_AreThoseOfAllRanksInOrder) {
  for (const int64_t dim : {0, 1}) {
    std::vector<int64_t> sizes = {3, 3, kIn};
    sizes[static_cast<size_t>(dim)] = 10;
    const at::Tensor all = numbers(sizes, 1);
    on_ranks(2, [&](const Group& group) {
      ArrivingTokens tokens(own_part(all, dim, group), dim, 3, group);
      const int64_t version = tokens.whole()._version();
      EXPECT_TRUE(tokens.next().has_value());
      tokens.finish();
      EXPECT_TRUE(at::equal(tokens.whole(), all));
      EXPECT_FALSE(tokens.next().has_value());
      EXPECT_EQ(tokens.whole()._version(), version) << "autograd would see a change";
    });
  }
}

TEST(OverlappedProduct, ALayerThatTheLossDoesNotUse_DoesNotKeepTheOthersWaiting) {
  expect_shared_input(std::nullopt, 2);
  expect_shared_input(1, 1);
}

TEST(OverlappedProduct, FrozenWeightsAndInputs_HaveNoGradient) {
  on_ranks(2, [](const Group& group) {
    const at::Tensor x = numbers({5, kIn}, 1), weight = trained(numbers({kOut, kIn}, 2));
    const Overlap overlap{.group = group, .result = ResultExchange::kSum, .chunks = 2};
    overlapped_product({x, weight, {}, true}, overlap).sum().backward();
    EXPECT_TRUE(weight.grad().defined());
    EXPECT_FALSE(overlapped_product({x, weight.detach(), {}, true}, overlap).requires_grad());
    const at::Tensor input = trained(x);
    overlapped_product({input, weight.detach(), {}, true}, overlap).sum().backward();
    expect_close(input.grad(), weight.detach().sum(0).expand({5, kIn}), "the input's gradient");
  });
}

TEST(OverlappedProduct, WhatLibTorchHasToConvert_IsLeftToIt) {
  const at::Tensor x = numbers({5, kIn}, 1), matrix = numbers({kOut, kIn}, 2);
  EXPECT_TRUE(can_overlap({x, matrix, {}, true}));
  EXPECT_TRUE(can_overlap({x, matrix, numbers({kOut}, 1), true}));
  EXPECT_FALSE(can_overlap({x, matrix.to(at::kBFloat16), {}, true}));
  EXPECT_FALSE(can_overlap({x.narrow(0, 0, 0), matrix, {}, true})) << "no tokens";
  EXPECT_FALSE(can_overlap({x, matrix, numbers({5, kOut}, 1), true})) << "a bias for each token";
  EXPECT_FALSE(can_overlap({x.to(at::kInt), matrix.to(at::kInt), {}, true}));
}

}  // namespace
}  // namespace coupler::tensor_parallel
