#include "formats/safetensors_header.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "safetensors_bytes.h"

namespace coupler::safetensors {
namespace {

using coupler::testing::entry;
using coupler::testing::file_bytes;
using coupler::testing::length_bytes;

Header parse_exact(const std::string& bytes) {
  // An exact-size heap copy, so that the address sanitizer detects reads past the end.
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  return parse_header(exact.data(), exact.size(), "model.safetensors");
}

// The message of the error from parsing `bytes`, or "accepted".
std::string header_refusal(const std::string& bytes) {
  try {
    parse_exact(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    return error.what();
  }
  return "accepted";
}

void expect_refused(const std::string& bytes, const std::vector<std::string>& parts) {
  const std::string message = header_refusal(bytes);
  EXPECT_NE(message.find("model.safetensors"), std::string::npos) << message;
  for (const auto& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "wanted: " << part << "\ngot: " << message;
}

std::string one_tensor(const std::string& fields, size_t data = 0) {
  return file_bytes("{\"w\":{" + fields + "}}", std::string(data, 'x'));
}

TEST(SafetensorsHeader_Valid, TwoTensorsOutOfJsonOrder_AreListedInOffsetOrder) {
  const auto header = parse_exact(file_bytes(
      "{" + entry("b", "I64", "1", 12, 20) + "," + entry("a", "F32", "3,1", 0, 12) + "}   ",
      std::string(20, '\0')));
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].dtype, DType::kF32);
  EXPECT_EQ(header.tensors[0].shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(header.tensors[1].begin, 12u);
  EXPECT_EQ(header.tensors[1].end, 20u);
  EXPECT_EQ(header.index.at("a"), 0u);
  EXPECT_EQ(header.index.at("b"), 1u);
}

TEST(SafetensorsHeader_Valid, NoTensors_AreAccepted) {
  EXPECT_TRUE(parse_exact(file_bytes("{}")).tensors.empty());
}

TEST(SafetensorsHeader_Valid, Metadata_IsKept) {
  const auto header = parse_exact(file_bytes(R"({"__metadata__":{"format":"pt","é":""}})"));
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.metadata.at("é"), "");
  EXPECT_TRUE(header.tensors.empty());
}

TEST(SafetensorsHeader_Valid, ScalarsAndEmptyTensorsBetweenOthers_AreAccepted) {
  const auto header = parse_exact(file_bytes("{" + entry("s", "F16", "", 0, 2) + "," +
                                                 entry("e", "F32", "0,7", 2, 2) + "," +
                                                 entry("t", "U8", "3", 2, 5) + "}",
                                             "12345"));
  EXPECT_EQ(header.tensors.size(), 3u);
  EXPECT_TRUE(header.tensors[0].shape.empty());
}

TEST(SafetensorsHeader_Valid, EveryDType_HasItsSize) {
  const std::vector<std::pair<std::string, uint64_t>> sizes = {
      {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6},     {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},     {"F8_E8M0", 8}, {"F8_E5M2FNUZ", 8},
      {"I16", 16}, {"U16", 16},    {"F8_E4M3FNUZ", 8}, {"F16", 16},    {"BF16", 16},
      {"I32", 32}, {"U32", 32},    {"F32", 32},        {"C64", 64},    {"F64", 64},
      {"I64", 64}, {"U64", 64}};
  for (const auto& [name, bits_each] : sizes) {
    const auto header = parse_exact(
        file_bytes("{" + entry("w", name, "8", 0, bits_each) + "}",
                   std::string(bits_each, 'x')));  // 8 elements: as many bytes as bits per element
    EXPECT_EQ(to_string(header.tensors[0].dtype), name);
    EXPECT_EQ(bits(header.tensors[0].dtype), bits_each);
  }
}

TEST(SafetensorsHeader_Length, FewerThanEightBytes_AreRefused) {
  expect_refused("", {"0 bytes are too few"});
  expect_refused("1234567", {"7 bytes are too few"});
}

TEST(SafetensorsHeader_Length, LongerThanTheFormatAllows_IsRefused) {
  expect_refused(length_bytes(kMaxHeaderBytes + 1) + "{}", {"100000001", "100000000"});
  expect_refused(length_bytes(~uint64_t{0}) + "{}", {"18446744073709551615"});
}

TEST(SafetensorsHeader_Length, LongerThanTheFile_IsRefused) {
  expect_refused(length_bytes(3) + "{}", {"header length 3 exceeds the 2 bytes"});
}

TEST(SafetensorsHeader_Json, AnythingNotStartingWithABrace_IsRefused) {
  expect_refused(file_bytes(" {}"), {"start with '{'"});
  expect_refused(file_bytes(""), {"start with '{'"});
  expect_refused(file_bytes("[]"), {"start with '{'"});
  expect_refused(file_bytes("\xEF\xBB\xBF{}"), {"start with '{'"});
}

TEST(SafetensorsHeader_Json, BrokenSyntax_NamesThePosition) {
  expect_refused(file_bytes("{\"w\":"), {"not valid JSON", "byte"});
  expect_refused(file_bytes("{} {}"), {"not valid JSON", "byte 4"});
  expect_refused(file_bytes("{/**/}"), {"not valid JSON"});
}

TEST(SafetensorsHeader_Json, BytesHiddenBehindANul_AreRefused) {
  expect_refused(file_bytes(std::string("{}\0", 3)), {"NUL"});
  expect_refused(file_bytes(std::string("{}\0evil", 7)), {"NUL"});
}

TEST(SafetensorsHeader_Json, InvalidUtf8_IsRefused) {
  expect_refused(file_bytes("{\"\xff\":{}}"), {"UTF-8"});
  expect_refused(file_bytes("{\"\xc0\xaf\":{}}"), {"UTF-8"});          // overlong
  expect_refused(file_bytes("{\"\xed\xa0\x80\":{}}"), {"UTF-8"});      // a surrogate
  expect_refused(file_bytes("{\"\\ud800\":{}}"), {"not valid JSON"});  // a lone surrogate, escaped
}

TEST(SafetensorsHeader_Json, DeepNesting_IsRefusedAtOnce) {
  std::string deep = "{\"w\":";
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  expect_refused(file_bytes(deep), {"tensor 'w'"});
  expect_refused(file_bytes("{\"w\":" + std::string(100'000, '[')), {"an array"});
}

TEST(SafetensorsHeader_Json, DuplicateKeys_AreRefused) {
  const auto w = entry("w", "U8", "1", 0, 1);
  expect_refused(file_bytes("{" + w + "," + w + "}", "x"), {"tensor 'w'", "twice"});
  expect_refused(file_bytes("{\"__metadata__\":{},\"__metadata__\":{}}"), {"twice"});
  expect_refused(file_bytes(R"({"__metadata__":{"a":"1","a":"2"}})"), {"'a' twice"});
  expect_refused(one_tensor(R"("dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1])", 1),
                 {"dtype is given twice"});
  // Equal after unescaping.
  expect_refused(file_bytes("{" + w + "," + entry("\\u0077", "U8", "1", 0, 1) + "}", "x"),
                 {"twice"});
}

TEST(SafetensorsHeader_Json, MetadataOfOtherThanStrings_IsRefused) {
  for (const char* value : {"1", "-1", "1.5", "null", "true", "{}", "[]"})
    expect_refused(file_bytes(std::string(R"({"__metadata__":{"a":)") + value + "}}"),
                   {"'a' must be a string"});
  expect_refused(file_bytes(R"({"__metadata__":"x"})"), {"must be an object, not a string"});
}

TEST(SafetensorsHeader_Json, WrongFields_AreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("shape":[1],"data_offsets":[0,1])", "dtype is missing"},
      {R"("dtype":"U8","data_offsets":[0,1])", "shape is missing"},
      {R"("dtype":"U8","shape":[1])", "data_offsets is missing"},
      {R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1)", "field 'x'"},
      {R"("dtype":"F33","shape":[1],"data_offsets":[0,1])", "dtype 'F33'"},
      {R"("dtype":8,"shape":[1],"data_offsets":[0,1])", "dtype must be a string"},
      {R"("dtype":["U8"],"shape":[1],"data_offsets":[0,1])", "dtype must be a string"},
      {R"("dtype":"U8","shape":1,"data_offsets":[0,1])", "shape must be an array"},
      {R"("dtype":"U8","shape":"1","data_offsets":[0,1])", "shape must be an array"},
      {R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])", "the negative number -1"},
      {R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])", "the number 1.0"},
      {R"("dtype":"U8","shape":[[1]],"data_offsets":[0,1])", "not an array"},
      {R"("dtype":"U8","shape":[null],"data_offsets":[0,1])", "not null"},
      {R"("dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1])", "1844674407"},
      {R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1])", "2^63"},
      {R"("dtype":"U8","shape":[1],"data_offsets":[0])", "two numbers"},
      {R"("dtype":"U8","shape":[1],"data_offsets":[])", "two numbers"},
      {R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])", "two numbers"},
      {R"("dtype":"U8","shape":[1],"data_offsets":[0,"1"])", "data_offsets must hold"},
      {R"("dtype":"U8","shape":[1],"data_offsets":{"0":1})", "must be an array, not an object"},
  };
  for (const auto& [fields, wanted] : cases) {
    SCOPED_TRACE(fields);
    expect_refused(one_tensor(fields, 1), {"tensor 'w'", wanted});
  }
  expect_refused(file_bytes("{\"w\":1}"), {"tensor 'w'", "must be an object"});
}

TEST(SafetensorsHeader_Json, TooManyDimensions_AreRefused) {
  std::string shape = "1";
  for (uint64_t i = 1; i < kMaxRank; ++i) shape += ",1";
  EXPECT_EQ(parse_exact(file_bytes("{" + entry("w", "U8", shape, 0, 1) + "}", "x")).tensors.size(),
            1u);
  expect_refused(file_bytes("{" + entry("w", "U8", shape + ",1", 0, 1) + "}", "x"), {"dimensions"});
}

TEST(SafetensorsHeader_Json, TooManyTensors_AreRefused) {
  std::string json = "{";
  for (uint64_t i = 0; i <= kMaxTensors; ++i)
    json += (i == 0 ? "" : ",") + entry(std::to_string(i), "U8", "0", 0, 0);
  expect_refused(file_bytes(json + "}"), {"more than 262144 tensors"});
}

TEST(SafetensorsHeader_Layout, RangesThatDoNotFitTheShape_AreRefused) {
  expect_refused(file_bytes("{" + entry("w", "F32", "3", 0, 8) + "}", std::string(8, 'x')),
                 {"tensor 'w'", "hold 8 bytes", "needs 12"});
  expect_refused(file_bytes("{" + entry("w", "F32", "0", 0, 4) + "}", "1234"), {"needs 0"});
  expect_refused(file_bytes("{" + entry("w", "F4", "3", 0, 2) + "}", "12"), {"whole number"});
}

TEST(SafetensorsHeader_Layout, OverflowingShapes_AreRefused) {
  const std::string big = "4294967296,4294967296";  // 2^64 elements
  expect_refused(file_bytes("{" + entry("w", "U8", big, 0, 0) + "}"), {"2^63"});
  expect_refused(file_bytes("{" + entry("w", "F64", "4611686018427387904", 0, 0) + "}"), {"2^63"});
  expect_refused(file_bytes("{" + entry("w", "U8", "0," + big, 0, 0) + "}"), {"2^63"});
}

TEST(SafetensorsHeader_Layout, RangesOutsideTheData_AreRefused) {
  expect_refused(file_bytes("{" + entry("w", "U8", "5", 0, 5) + "}", "1234"),
                 {"tensor 'w'", "reach past the file's 4 bytes"});
  expect_refused(file_bytes("{" + entry("w", "U8", "1", 2, 1) + "}", "1234"), {"end before"});
  expect_refused(file_bytes("{" + entry("w", "U8", "1", ~uint64_t{0} - 1, ~uint64_t{0}) + "}", "1"),
                 {"reach past"});
}

TEST(SafetensorsHeader_Layout, HolesOverlapsAndTrailingBytes_AreRefused) {
  const auto a = entry("a", "U8", "2", 0, 2);
  expect_refused(file_bytes("{" + a + "," + entry("b", "U8", "1", 3, 4) + "}", "1234"),
                 {"tensor 'b'", "leave a hole"});
  expect_refused(file_bytes("{" + a + "," + entry("b", "U8", "2", 1, 3) + "}", "123"),
                 {"tensor 'b'", "overlap"});
  expect_refused(file_bytes("{" + a + "," + entry("b", "U8", "2", 0, 2) + "}", "12"), {"overlap"});
  expect_refused(file_bytes("{" + entry("b", "U8", "1", 1, 2) + "}", "12"), {"leave a hole"});
  expect_refused(file_bytes("{" + a + "}", "123"), {"trailing bytes"});
  expect_refused(file_bytes("{}", "1"), {"trailing bytes"});
}

TEST(SafetensorsHeader_Names, ControlCharacters_AreShownEscaped) {
  expect_refused(file_bytes("{\"a\\u001b[31m\":1}"), {"tensor 'a\\x1b[31m'"});
}

// Every file truncated to any length, or with any one byte flipped, is either refused or parsed.
TEST(SafetensorsHeader_Damage, EveryTruncationAndByteFlip_IsHandled) {
  const std::string good =
      file_bytes("{\"__metadata__\":{\"k\":\"v\"}," + entry("a", "F32", "2", 0, 8) + "," +
                     entry("b", "U8", "3", 8, 11) + "}",
                 "01234567abc");
  ASSERT_EQ(header_refusal(good), "accepted");
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_NE(header_refusal(good.substr(0, size)), "accepted") << "truncated to " << size;
  for (size_t i = 0; i < good.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = good;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_FALSE(header_refusal(damaged).empty());
    }
}

}  // namespace
}  // namespace coupler::safetensors
