// The contest of collectives: which buffer a candidate works on, and whose result is checked.
#include "comparison.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

namespace coupler::bench {
namespace {

// As the only rank, whose sum is its own data.
std::vector<ComparisonResult> compare_alone(const std::vector<Candidate>& candidates) {
  const ComparisonPlan plan{.bytes = {40}, .rounds = 2, .time = std::chrono::microseconds(10)};
  return run_comparison(candidates, plan, 0, 1, [](int64_t number) { return number; });
}

TEST(ComparisonTest, OwnMemory_IsWhereTheCandidateWorks) {
  std::vector<float*> given;
  const auto noting = [&given](float* data, uint64_t) {
    given.push_back(data);
    return [] {};
  };
  const auto floats = std::make_shared<std::vector<float>>(10);
  uint64_t asked = 0;
  const auto provide = [&](uint64_t bytes) {
    asked = bytes;
    return std::shared_ptr<void>(floats, floats->data());
  };
  compare_alone({{.name = "first", .prepare = noting},
                 {.name = "own", .prepare = noting, .memory = provide},
                 {.name = "last", .prepare = noting}});
  ASSERT_EQ(given.size(), 3U);
  EXPECT_EQ(given[1], floats->data());
  EXPECT_EQ(asked, 40U);
  EXPECT_EQ(given[0], given[2]);
  EXPECT_NE(given[0], given[1]);
}

TEST(ComparisonTest, WrongSum_IsRefused_ExceptOfWhatSumsNothing) {
  const auto spoiling = [](float* data, uint64_t) { return [data] { data[3] = 100; }; };
  EXPECT_THROW(compare_alone({{.name = "wrong", .prepare = spoiling}}), std::runtime_error);
  const auto results =
      compare_alone({{.name = "other", .prepare = spoiling, .is_sum = false}, plain_copy()});
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].medians_us.size(), 2U);
  EXPECT_EQ(results[1].name, "copy");
  EXPECT_EQ(results[1].medians_us.size(), 2U);
}

}  // namespace
}  // namespace coupler::bench
