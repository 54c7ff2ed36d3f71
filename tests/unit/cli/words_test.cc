#include "cli/text/words.h"

#include <gtest/gtest.h>

namespace coupler::cli {
namespace {

using Words = std::vector<std::string>;

TEST(Words, Split_KeepsEmptyParts) {
  EXPECT_EQ(split("8,64K,", ','), (Words{"8", "64K", ""}));
  EXPECT_EQ(split("none", '|'), Words{"none"});
  EXPECT_EQ(split("", ','), Words{""});
}

TEST(Words, Argv_EndsWithNull) {
  const Words words = {"launch", "-n", "2"};
  const std::vector<char*> argv = argv_of(words);
  ASSERT_EQ(argv.size(), 4u);
  for (size_t i = 0; i < words.size(); ++i) EXPECT_STREQ(argv[i], words[i].c_str());
  EXPECT_EQ(argv[3], nullptr);
}

}  // namespace
}  // namespace coupler::cli
