// Dropout and attention of divided values drop on each rank what its own draws say, and leave the
// generator where the other ranks' is.
#include "tensors/divided_values.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

namespace coupler::tensors {
namespace {

DividedValuesScope of_rank(int rank) {
  return DividedValuesScope(
      std::make_shared<const DividedValues>(DividedValues{.features = {6, 10}, .rank = rank}));
}

struct Drawn {
  at::Tensor result, next;  // and what is drawn after it
};

Drawn draw(int rank, const std::function<at::Tensor()>& operation) {
  const DividedValuesScope scope = of_rank(rank);
  at::manual_seed(5);
  Drawn drawn;
  drawn.result = operation();
  drawn.next = at::rand({8});
  return drawn;
}

void expect_own_draws(const std::function<at::Tensor()>& operation) {
  const Drawn first = draw(0, operation), second = draw(1, operation), again = draw(1, operation);
  EXPECT_FALSE(at::equal(first.result, second.result));
  EXPECT_TRUE(at::equal(second.result, again.result));
  EXPECT_TRUE(at::equal(first.next, second.next));
}

TEST(DividedValues, Dropout_IsEachRanksOwn) {
  for (const at::Tensor& x :
       {at::ones({4, 5, 6}), at::ones({7, 10}), at::ones({2, 3, 5, 5}), at::ones({20, 6})}) {
    SCOPED_TRACE(x.dim());
    expect_own_draws([&] { return at::dropout(x, 0.5, /*train=*/true); });
    expect_own_draws([&] {
      at::Tensor copy = x.clone();
      at::dropout_(copy, 0.5, /*train=*/true);
      return copy;
    });
  }
}

TEST(DividedValues, TwoCalls_DropDifferently) {
  const DividedValuesScope scope = of_rank(1);
  at::manual_seed(5);
  const at::Tensor x = at::ones({4, 5, 6}), first = at::dropout(x, 0.5, /*train=*/true);
  EXPECT_FALSE(at::equal(first, at::dropout(x, 0.5, /*train=*/true)));
}

TEST(DividedValues, Attention_IsEachRanksOwn) {
  const at::Tensor x = at::ones({2, 3, 16, 4});
  expect_own_draws(
      [&] { return at::scaled_dot_product_attention(x, x, x, {}, /*dropout_p=*/0.5); });
}

TEST(DividedValues, OtherValues_AreDroppedAsEver) {
  for (const at::Tensor& x : {at::ones({4, 5, 7}), at::ones({6, 3})}) {
    SCOPED_TRACE(x.dim());
    at::manual_seed(5);
    const at::Tensor expected = at::dropout(x, 0.5, /*train=*/true);
    EXPECT_TRUE(
        at::equal(draw(1, [&] { return at::dropout(x, 0.5, /*train=*/true); }).result, expected));
  }
  const at::Tensor heads = at::ones({2, 3, 16, 4});
  const auto attend = [&] { return at::scaled_dot_product_attention(heads, heads, heads); };
  at::manual_seed(5);
  const at::Tensor next = at::rand({8});
  EXPECT_TRUE(at::equal(draw(1, attend).next, next));
  EXPECT_TRUE(at::equal(draw(1, [&] { return at::dropout(heads, 0.5, false); }).next, next));
}

TEST(DividedValues, Scope_Ends) {
  const auto before = divided_values();
  { const DividedValuesScope scope = of_rank(1); }
  EXPECT_EQ(divided_values(), before);
}

}  // namespace
}  // namespace coupler::tensors
