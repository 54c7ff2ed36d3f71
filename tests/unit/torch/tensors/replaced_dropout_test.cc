// Dropout of a part of the tokens takes the part of the mask that dropout of all tokens draws.
#include "tensors/replaced_dropout.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace coupler::tensors {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kPart = 3;

at::Tensor dropped(const at::Tensor& x) {
  at::manual_seed(5);
  return at::dropout(x, 0.4, /*train=*/true);
}

// As rank `rank`, whose part of the tokens is along `dim`.
PartOfTokensScope as_rank(int rank, int64_t dim = 1) {
  return PartOfTokensScope(std::make_shared<const PartOfTokens>(
      PartOfTokens{.tokens = kPart, .dim = dim, .rank = rank, .ranks = kRanks}));
}

TEST(ReplacedDropout, Parts_AreThoseOfOneMask) {
  for (const int64_t dim : {0, 1}) {
    std::vector<int64_t> sizes = {5, 5, 7};
    sizes[static_cast<size_t>(dim)] = kRanks * kPart;
    const at::Tensor all = at::rand(sizes, at::kDouble).add(1), expected = dropped(all);
    EXPECT_GT(expected.eq(0).sum().item<int64_t>(), 0);
    for (int rank = 0; rank < kRanks; ++rank) {
      const PartOfTokensScope scope = as_rank(rank, dim);
      const at::Tensor own = all.narrow(dim, rank * kPart, kPart).contiguous();
      const at::Tensor wanted = expected.narrow(dim, rank * kPart, kPart);
      EXPECT_TRUE(at::equal(dropped(own), wanted)) << rank;
      at::Tensor in_place = own.clone();
      at::manual_seed(5);
      at::dropout_(in_place, 0.4, /*train=*/true);
      EXPECT_TRUE(at::equal(in_place, wanted)) << rank;
    }
    EXPECT_EQ(part_of_tokens(), nullptr);
  }
}

TEST(ReplacedDropout, Gradients_PassThroughWhatWasKept) {
  const PartOfTokensScope scope = as_rank(2);
  const at::Tensor x = at::rand({2, kPart, 7}, at::kDouble).add(1).requires_grad_(true);
  const at::Tensor y = dropped(x);
  y.sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), y.detach() / x.detach()));
}

TEST(ReplacedDropout, OtherTensors_AreDroppedAsEver) {
  // All tokens, heads, and a part that is not trained.
  for (const at::Tensor& x :
       {at::rand({2, kPart * kRanks, 7}), at::rand({2, 4, kPart, kPart}), at::rand({kPart, 7})}) {
    const at::Tensor expected = dropped(x);
    const PartOfTokensScope scope = as_rank(1);
    EXPECT_TRUE(at::equal(dropped(x), expected)) << x.sizes();
  }
  const PartOfTokensScope scope = as_rank(1);
  const at::Tensor part = at::rand({2, kPart, 7});
  EXPECT_TRUE(at::equal(at::dropout(part, 0.4, /*train=*/false), part));
}

}  // namespace
}  // namespace coupler::tensors
