#include "base/log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace coupler {
namespace {

LogFilter parse(const std::string& text) {
  std::string complaint;
  LogFilter filter = parse_log_filter(text, complaint);
  EXPECT_EQ(complaint, "");
  return filter;
}

std::string complaint_about(const std::string& text) {
  std::string complaint;
  parse_log_filter(text, complaint);
  return complaint;
}

TEST(LogFilter, NothingSet_AllowsWarningsAndErrors) {
  const LogFilter filter = parse("");
  EXPECT_TRUE(filter.allows(LogLevel::kError, "comm"));
  EXPECT_TRUE(filter.allows(LogLevel::kWarning, "comm"));
  EXPECT_FALSE(filter.allows(LogLevel::kInfo, "comm"));
}

TEST(LogFilter, OneLevel_IsThatOfAllComponents) {
  EXPECT_TRUE(parse("debug").allows(LogLevel::kDebug, "plugin"));
  EXPECT_FALSE(parse("debug").allows(LogLevel::kTrace, "plugin"));
  EXPECT_FALSE(parse("error").allows(LogLevel::kWarning, "plugin"));
}

TEST(LogFilter, Components_HaveTheirOwnLevels) {
  const LogFilter filter = parse("comm=trace, plugin=error ,info,comm=debug");
  EXPECT_TRUE(filter.allows(LogLevel::kDebug, "comm"));
  EXPECT_FALSE(filter.allows(LogLevel::kTrace, "comm")) << "the later entry wins";
  EXPECT_FALSE(filter.allows(LogLevel::kWarning, "plugin"));
  EXPECT_TRUE(filter.allows(LogLevel::kInfo, "store"));
  EXPECT_FALSE(filter.allows(LogLevel::kDebug, "store"));
}

TEST(LogFilter, UnknownLevel_IsNamedWithTheValidOnes) {
  EXPECT_EQ(complaint_about("loud"),
            "coupler: COUPLER_LOG: 'loud' is ignored: 'loud' is not a level; valid levels: trace, "
            "debug, info, warning, error (COUPLER_LOG=debug, or COUPLER_LOG=comm=trace,"
            "plugin=debug)\n");
  EXPECT_NE(complaint_about("comm=2").find("'comm=2' is ignored: '2' is not a level"),
            std::string::npos);
  EXPECT_NE(complaint_about("=debug").find("it names no component"), std::string::npos);
}

TEST(LogFilter, UnknownLevelBesideAGoodOne_LeavesTheGoodOne) {
  std::string complaint;
  const LogFilter filter = parse_log_filter("loud,comm=trace", complaint);
  EXPECT_TRUE(filter.allows(LogLevel::kTrace, "comm"));
  EXPECT_NE(complaint, "");
}

// COUPLER_LOG is read once per process, so each of these runs in a child.
class LogDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(LogDeathTest, Lines_NameRankAndComponent) {
  const auto log_some = [] {
    setenv("COUPLER_LOG", "comm=debug", 1);
    log(LogLevel::kDebug, "comm", "before the rank is known");
    set_log_rank(1);
    log(LogLevel::kDebug, "comm", "after");
    log(LogLevel::kTrace, "comm", "too fine");
    log(LogLevel::kInfo, "plugin", "of another component");
    std::_Exit(0);
  };
  EXPECT_EXIT(log_some(), ::testing::ExitedWithCode(0),
              "^.coupler comm. before the rank is known\n.coupler rank 1 comm. after\n$");
}

TEST_F(LogDeathTest, InvalidVariable_IsReportedOnceAndWarningsStillShow) {
  const auto log_some = [] {
    setenv("COUPLER_LOG", "loud", 1);
    log(LogLevel::kWarning, "comm", "one");
    log(LogLevel::kWarning, "comm", "two");
    std::_Exit(0);
  };
  EXPECT_EXIT(log_some(), ::testing::ExitedWithCode(0),
              "^coupler: COUPLER_LOG: 'loud' is ignored: [^\n]*\n"
              ".coupler comm. one\n.coupler comm. two\n$");
}

}  // namespace
}  // namespace coupler
