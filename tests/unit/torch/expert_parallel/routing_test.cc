// What a dry run assumes of the tokens that choose experts: all experts get equally many.
#include "expert_parallel/routing.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace coupler::expert_parallel {
namespace {

using Numbers = std::vector<int64_t>;

Numbers values_of(const at::Tensor& tensor) {
  const auto* const first = tensor.const_data_ptr<int64_t>();
  return {first, first + tensor.numel()};
}

TEST(AssumedRouting, EveryExpert_TakesAsManyAsTheOthers) {
  const at::Tensor chosen = at::zeros({5, 2}, at::kLong);  // all chose the first
  const Routing routing = assume_balance(chosen, 3);
  EXPECT_TRUE(routing.assumed);
  EXPECT_EQ(routing.rows, (Numbers{4, 3, 3}));
  EXPECT_EQ(routing.choices.numel(), 10);
  EXPECT_EQ(routing.dropped, 0);
  EXPECT_EQ(route(chosen, 3, 100).rows, (Numbers{10, 0, 0}));
}

TEST(AssumedRouting, OtherRanks_SendWhatThisOneKeeps) {
  const at::Tensor chosen = at::zeros({5, 2}, at::kLong);
  const Arrivals arrivals =
      arrivals_of(assume_balance(chosen, 4), comm::Communicator::made_up("experts", 2), chosen);
  EXPECT_EQ(arrivals.sent, (Numbers{6, 4}));
  EXPECT_EQ(arrivals.received, (Numbers{6, 6}));
  EXPECT_EQ(arrivals.rows, (Numbers{6, 6}));
  // Three rows for each of its two experts from either rank.
  EXPECT_EQ(values_of(arrivals.by_expert), (Numbers{0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11}));
  EXPECT_EQ(values_of(arrivals.by_rank), (Numbers{0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11}));
}

}  // namespace
}  // namespace coupler::expert_parallel
