// Lists and patterns of names.
#include <gtest/gtest.h>

#include "common/model.h"

namespace db {
namespace {

TEST(SplitList_BlanksAndEmptyItems_AreLeftOut, OnlyNamesStay) {
  EXPECT_EQ(split_list(""), std::vector<std::string>{});
  EXPECT_EQ(split_list(" , ,"), std::vector<std::string>{});
  EXPECT_EQ(split_list(" a.b ,c,,\td e "), (std::vector<std::string>{"a.b", "c", "d e"}));
}

TEST(Matches_Star_StopsAtDots, TwoStarsDoNot) {
  EXPECT_TRUE(matches("blocks.*", "blocks.0"));
  EXPECT_FALSE(matches("blocks.*", "blocks.0.mlp"));
  EXPECT_TRUE(matches("blocks.**", "blocks.0.mlp"));
  EXPECT_TRUE(matches("blocks.*.mlp", "blocks.11.mlp"));
  EXPECT_FALSE(matches("*.bias", "blocks.0.bias"));
  EXPECT_TRUE(matches("**.bias", "blocks.0.bias"));
  EXPECT_TRUE(matches("**norm*", "blocks.0.norm1"));
  EXPECT_TRUE(matches("*", "blocks"));
  EXPECT_TRUE(matches("**", ""));
  EXPECT_TRUE(matches("b*s", "bs"));
  EXPECT_FALSE(matches("block", "blocks"));
  EXPECT_FALSE(matches("blocks", "block"));
  EXPECT_FALSE(matches("", "a"));
}

TEST(Matches_ManyStars_TakeNoExponentialTime, NoMatch) {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "*a";
  EXPECT_FALSE(matches(pattern + "b", std::string(2000, 'a')));
}

TEST(ListSome_ManyNames_AreCut, WithTheirNumber) {
  EXPECT_EQ(list_some({}), "none");
  EXPECT_EQ(list_some({"a", "b"}), "a, b");
  EXPECT_EQ(list_some({"a", "b", "c", "d", "e", "f", "g", "h"}), "a, b, c, d, e, f and 2 more");
}

}  // namespace
}  // namespace db
