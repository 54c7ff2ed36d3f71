// A program's own log lines. COUPLER_LOG is not set: only warnings and errors are printed.
#include <coupler/logging.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace coupler {
namespace {

std::string written(const std::function<void()>& action) {
  ::testing::internal::CaptureStderr();
  action();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Logger, Warning_NamesTheLogger) {
  const Logger logger = get_logger("train");
  EXPECT_EQ(written([&] { logger.warning("the rate is 0"); }), "[coupler train] the rate is 0\n");
  EXPECT_EQ(written([&] { logger.error("no data"); }), "[coupler train] no data\n");
}

TEST(Logger, BelowTheLevel_NothingIsWritten) {
  const Logger logger("train");
  EXPECT_FALSE(logger.enabled(LogLevel::kInfo));
  EXPECT_TRUE(logger.enabled(LogLevel::kWarning));
  EXPECT_EQ(written([&] {
              logger.info("epoch 1");
              logger.debug("batch 1");
            }),
            "");
}

TEST(Logger, WarningOnce_IsWrittenOnceAName) {
  const auto both = [] {
    Logger("once").warning_once("slow");
    Logger("other").warning_once("slow");
  };
  EXPECT_EQ(written(both), "[coupler once] slow\n[coupler other] slow\n");
  EXPECT_EQ(written(both), "");
  EXPECT_EQ(written([] { Logger("once").warning_once("slower"); }), "[coupler once] slower\n");
}

TEST(Logger, InOrderAlone_IsOneLine) {
  EXPECT_EQ(written([] { Logger("train").warning("here", {.in_order = true}); }),
            "[coupler train] here\n");
}

}  // namespace
}  // namespace coupler
