#include <ATen/Functions.h>
#include <coupler/nested.h>

#include <algorithm>
#include <numeric>

#include "refusal.h"

namespace coupler::testing {
namespace {

std::vector<int> numbers(int count) {
  std::vector<int> result(static_cast<size_t>(count));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

TEST(Split, Vector_AnyCountAndWorld_PartsJoinedAreTheWhole) {
  for (int count = 0; count <= 20; ++count) {
    for (int world_size = 1; world_size <= 7; ++world_size) {
      const std::vector<int> all = numbers(count);
      std::vector<int> joined;
      for (int rank = 0; rank < world_size; ++rank) {
        const auto part = split_between(all, rank, world_size);
        ASSERT_EQ(static_cast<int>(part.size()),
                  count / world_size + (rank < count % world_size ? 1 : 0));
        joined.insert(joined.end(), part.begin(), part.end());

        auto padded = split_between(all, rank, world_size, true);
        ASSERT_EQ(static_cast<int>(padded.size()), (count + world_size - 1) / world_size);
        if (padded.size() > part.size()) {
          ASSERT_EQ(padded.back(), all.back());
          padded.pop_back();
        }
        ASSERT_EQ(padded, part);
      }
      ASSERT_EQ(joined, all) << count << " over " << world_size;
    }
  }
}

TEST(Split, Tensor_Remainder_RowsAndPadding) {
  const at::Tensor all = at::arange(10).view({5, 2});
  EXPECT_TRUE(at::equal(split_between(all, 0, 2), all.narrow(0, 0, 3)));
  EXPECT_TRUE(at::equal(split_between(all, 1, 2), all.narrow(0, 3, 2)));
  EXPECT_TRUE(at::equal(split_between(all, 1, 2, true),
                        at::cat({all.narrow(0, 3, 2), all.narrow(0, 4, 1)})));
  EXPECT_EQ(split_between(all, 6, 7).sizes(), at::IntArrayRef({0, 2}));
  EXPECT_TRUE(at::equal(split_between(all, 6, 7, true), all.narrow(0, 4, 1)));
}

TEST(Split, Map_EveryValueAlike) {
  const std::map<std::string, std::vector<int>> map = {{"a", numbers(3)}, {"b", {7, 8, 9}}};
  const auto part = split_between(map, 1, 2, true);
  EXPECT_EQ(part.at("a"), (std::vector<int>{2, 2}));
  EXPECT_EQ(part.at("b"), (std::vector<int>{9, 9}));
  EXPECT_TRUE(split_between(std::map<std::string, at::Tensor>{}, 1, 2).empty());
}

TEST(Split, WrongInput_ErrorNamesIt) {
  const std::map<std::string, std::vector<int>> uneven = {{"a", {1}}, {"b", {1}}, {"c", {1, 2}}};
  expect_error(ErrorCode::kInvalidArgument, "\"a\" has 1 elements and \"c\" has 2",
               [&] { split_between(uneven, 0, 2); });
  expect_error(ErrorCode::kInvalidArgument, "a scalar tensor has no rows",
               [] { split_between(at::ones({}), 0, 2); });
  expect_error(ErrorCode::kInvalidArgument, "rank 2 is outside the world of 2",
               [] { split_between(numbers(3), 2, 2); });
}

}  // namespace
}  // namespace coupler::testing
