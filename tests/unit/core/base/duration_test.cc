#include <gtest/gtest.h>

#include "base/units.h"

namespace coupler {
namespace {

using std::chrono::nanoseconds;

TEST(ParseDuration, EveryUnit_IsUnderstood) {
  EXPECT_EQ(parse_duration("30s"), std::chrono::seconds(30));
  EXPECT_EQ(parse_duration("500ms"), std::chrono::milliseconds(500));
  EXPECT_EQ(parse_duration("2min"), std::chrono::minutes(2));
  EXPECT_EQ(parse_duration("1.5h"), std::chrono::minutes(90));
  EXPECT_EQ(parse_duration("7us"), std::chrono::microseconds(7));
  EXPECT_EQ(parse_duration("9ns"), nanoseconds(9));
  EXPECT_EQ(parse_duration("30 s"), std::chrono::seconds(30));
  EXPECT_EQ(parse_duration("0.25"), std::chrono::milliseconds(250));
  EXPECT_EQ(parse_duration("-1s"), std::chrono::seconds(-1));
}

TEST(ParseDuration, AnythingElse_IsNone) {
  for (const char* text : {"", "s", "30 ", "30m", "30S", "3 0s", "inf", "nan", "infs", "1e300s",
                           "999999h99", "99999999999h", "thirty", " 30s", "30  s", "1,5s"}) {
    EXPECT_EQ(parse_duration(text), std::nullopt) << text;
  }
}

TEST(DurationOfSeconds, WhatDoesNotFit_IsNone) {
  EXPECT_EQ(duration_of_seconds(0.5), std::chrono::milliseconds(500));
  EXPECT_EQ(duration_of_seconds(1e18), std::nullopt);
  EXPECT_EQ(duration_of_seconds(-1e18), std::nullopt);
}

TEST(FormatDuration, AnyDuration_ReadsBackTheSame) {
  for (const int64_t count : {0LL, 1LL, 999LL, 1000LL, 1500000LL, 30000000000LL, 90000000001LL}) {
    const std::string text = format_duration(nanoseconds(count));
    EXPECT_EQ(parse_duration(text), nanoseconds(count)) << text;
  }
  EXPECT_EQ(format_duration(std::chrono::seconds(30)), "30s");
  EXPECT_EQ(format_duration(std::chrono::milliseconds(1500)), "1500ms");
}

}  // namespace
}  // namespace coupler
