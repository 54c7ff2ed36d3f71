#include <gtest/gtest.h>

#include "base/text.h"

namespace coupler {
namespace {

TEST(EditDistance, KnownPairs_AreRight) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("seed", "sede"), 1U) << "adjacent letters swapped";
  EXPECT_EQ(edit_distance("ca", "abc"), 3U) << "restricted: swapped letters are not edited again";
}

TEST(EditDistance, EitherOrder_IsTheSame) {
  EXPECT_EQ(edit_distance("timeout", "tmieot"), edit_distance("tmieot", "timeout"));
}

TEST(NearestName, TypingMistake_FindsTheName) {
  const std::vector<std::string> names = {"backend.use", "backend.timeout", "launch.processes"};
  EXPECT_EQ(nearest_name("backend.us", names), "backend.use");
  EXPECT_EQ(nearest_name("backend.timeotu", names), "backend.timeout");
  EXPECT_EQ(nearest_name("processes", names), "launch.processes");
  EXPECT_EQ(nearest_name("launch.proc", names), "launch.processes");
}

TEST(NearestName, NothingNear_IsEmpty) {
  EXPECT_EQ(nearest_name("colour", {"backend.use", "launch.processes"}), "");
  EXPECT_EQ(nearest_name("x", {}), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'a'), {std::string(100000, 'a')}), "");
}

}  // namespace
}  // namespace coupler
