#include <coupler/error.h>
#include <gtest/gtest.h>

#include <string>

#include "estimate/settings.h"

namespace coupler {
namespace {

Config with_limit(const std::string& text) {
  static const char* const kNone[] = {nullptr};
  return load_config({.overrides = {"memory.limit=" + text}, .environment = kNone});
}

TEST(MemoryLimitSetting, Sizes_AreReadAsWritten) {
  EXPECT_EQ(memory_limit_of(Config()), 0u);
  EXPECT_EQ(memory_limit_of(with_limit("4GiB")), uint64_t{4} << 30);
  EXPECT_EQ(memory_limit_of(with_limit("\"1500MB\"")), 1'500'000'000u);
}

TEST(MemoryLimitSetting, NoSize_IsAnErrorOfTheConfiguration) {
  for (const std::string text : {"\"4gb\"", "\"4 Gi\"", "\"0\""}) {
    try {
      memory_limit_of(with_limit(text));
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_NE(std::string(error.what()).find("memory.limit"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("is not a size"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace coupler
