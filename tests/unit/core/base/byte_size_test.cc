#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/units.h"
#include "refusal.h"

namespace coupler {
namespace {

uint64_t size_of(const std::string& text) { return parse_byte_size(text, "max_shard_size"); }

std::string size_refusal(const std::string& text) {
  return testing::refusal_of(ErrorCode::kInvalidArgument, [&] { size_of(text); });
}

TEST(ParseByteSize, EveryUnit_IsUnderstood) {
  EXPECT_EQ(size_of("1"), 1u);
  EXPECT_EQ(size_of("4096"), 4096u);
  EXPECT_EQ(size_of("7B"), 7u);
  EXPECT_EQ(size_of("2KB"), 2'000u);
  EXPECT_EQ(size_of("2KiB"), 2'048u);
  EXPECT_EQ(size_of("3MB"), 3'000'000u);
  EXPECT_EQ(size_of("3MiB"), 3u << 20);
  EXPECT_EQ(size_of("10GB"), 10'000'000'000u);
  EXPECT_EQ(size_of("10GiB"), uint64_t{10} << 30);
  EXPECT_EQ(size_of("5TB"), 5'000'000'000'000u);
  EXPECT_EQ(size_of("5TiB"), uint64_t{5} << 40);
}

TEST(ParseByteSize, OneSpaceBeforeTheUnit_IsAllowed) {
  EXPECT_EQ(size_of("10 GB"), 10'000'000'000u);
  EXPECT_EQ(size_of("7 B"), 7u);
}

TEST(ParseByteSize, Decimals_AreExact_AndRoundedDown) {
  EXPECT_EQ(size_of("1.5GB"), 1'500'000'000u);
  EXPECT_EQ(size_of("0.5KiB"), 512u);
  // As a double, this value would be a byte less.
  EXPECT_EQ(size_of("4.35GB"), 4'350'000'000u);
  EXPECT_EQ(size_of("1.3GiB"), 1'395'864'371u);
  EXPECT_EQ(size_of("1.999999999999999999999999999999KB"), 1'999u);
  EXPECT_EQ(size_of("9007199.254740993GB"), 9'007'199'254'740'993u);
}

TEST(ParseByteSize, TheLargestThatFits_IsTaken_AndOneMoreIsRefused) {
  EXPECT_EQ(size_of("9223372036854775807"), 9'223'372'036'854'775'807u);
  EXPECT_EQ(size_of("8388607.5TiB"), (uint64_t{8'388'607} << 40) + (uint64_t{1} << 39));
  for (const char* text : {"9223372036854775808", "18446744073709551616", "8388608TiB",
                           "99999999999999999999GB", "9223372.036854775808TB"})
    EXPECT_EQ(size_refusal(text), "max_shard_size: '" + std::string(text) +
                                      "' is not a size: it exceeds 2^63 - 1 bytes");
}

TEST(ParseByteSize, UnitsSpelledOtherwise_AreRefused_NamingTheValidOnes) {
  for (const char* unit : {"Gb", "gb", "gB", "G", "GIB", "Gib", "gib", "kB", "K", "b", "PB", "GBs",
                           "GB ", "  GB", " ", "e9", "\tGB"})
    EXPECT_EQ(size_refusal("10" + std::string(unit)).substr(0, 40).find("max_shard_size: '10"), 0u)
        << unit;
  EXPECT_EQ(
      size_refusal("10Gb"),
      "max_shard_size: '10Gb' is not a size: its unit 'Gb' is not one of B, KB, MB, GB, TB, KiB, "
      "MiB, GiB, TiB");
  EXPECT_NE(size_refusal("1,5GB").find("its unit ',5GB' is not one of"), std::string::npos);
  EXPECT_NE(size_refusal("1.5.5GB").find("its unit '.5GB' is not one of"), std::string::npos);
}

TEST(ParseByteSize, WhatIsNoPositiveNumber_IsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "it does not begin with a digit"},
      {"GB", "it does not begin with a digit"},
      {" 1GB", "it does not begin with a digit"},
      {"+1GB", "it does not begin with a digit"},
      {".5GB", "it does not begin with a digit"},
      {"inf", "it does not begin with a digit"},
      {"-1", "it is negative"},
      {"-1GB", "it is negative"},
      {"0", "it is less than a byte"},
      {"0GB", "it is less than a byte"},
      {"0.0000001KB", "it is less than a byte"},
      {"1.GB", "no digit follows the decimal point"},
      {"1.5", "bytes cannot be fractional"},
      {"1.5B", "bytes cannot be fractional"}};
  for (const auto& [text, rule] : cases)
    EXPECT_EQ(size_refusal(text), "max_shard_size: '" + text + "' is not a size: " + rule);
}

TEST(ParseByteSize, TheError_NamesTheKeyAndWhatIsValid) {
  try {
    parse_byte_size("10Gb", "max_shard_size");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.detail().subject, "max_shard_size");
    EXPECT_EQ(
        error.detail().hint,
        "give a number of bytes, or a number with one of B, KB, MB, GB, TB, KiB, MiB, GiB and "
        "TiB, such as 10GB");
  }
}

TEST(FormatByteSize, TakesTheLargestUnitThatFits) {
  EXPECT_EQ(format_byte_size(0), "0 B");
  EXPECT_EQ(format_byte_size(1023), "1023 B");
  EXPECT_EQ(format_byte_size(1024), "1.0 KiB");
  EXPECT_EQ(format_byte_size(1536), "1.5 KiB");
  EXPECT_EQ(format_byte_size((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_byte_size(uint64_t{12} << 30), "12.0 GiB");
  EXPECT_EQ(format_byte_size(~uint64_t{0}), "16.0 EiB");
}

}  // namespace
}  // namespace coupler
