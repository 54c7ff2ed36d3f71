#include "formats/weight_index.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "formats/safetensors_header.h"
#include "refusal.h"

namespace coupler::formats {
namespace {

std::string index_text() {
  std::ifstream in(
      std::string(COUPLER_SOURCE_DIR) + "/tests/unit/core/formats/fixtures/weight_index.json",
      std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

WeightIndex parse_index(const std::string& text) {
  // An exact-size heap copy, so that the address sanitizer detects reads past the end.
  const std::vector<char> exact(text.begin(), text.end());
  return parse_weight_index({exact.data(), exact.size()}, "index.json");
}

std::string index_refusal(const std::string& text) {
  return testing::refusal_of(ErrorCode::kIo, [&] { parse_index(text); });
}

std::string format_refusal(const WeightIndex& index) {
  return testing::refusal_of(ErrorCode::kInvalidArgument,
                             [&] { format_weight_index(index, "index.json"); });
}

TEST(WeightIndex, OneWrittenByPython_ReadsAsWritten_AndIsWrittenTheSame) {
  const std::string text = index_text();
  const WeightIndex index = parse_index(text);
  EXPECT_EQ(index.total_size, 123456789012u);
  ASSERT_EQ(index.weight_map.size(), 4u);
  EXPECT_EQ(index.weight_map.at("a.weight"), "model-00001-of-00002.safetensors");
  EXPECT_EQ(index.weight_map.at("b\"é\x7f\n\U0001f600"), "model-00002-of-00002.safetensors");
  EXPECT_EQ(format_weight_index(index, "index.json"), text);
}

TEST(WeightIndex, Formatted_IsSortedAndEndsItsLastLine) {
  const WeightIndex index{.total_size = 28, .weight_map = {{"b", "y"}, {"a", "x"}}};
  EXPECT_EQ(format_weight_index(index, "index.json"),
            "{\n  \"metadata\": {\n    \"total_size\": 28\n  },\n  \"weight_map\": {\n"
            "    \"a\": \"x\",\n    \"b\": \"y\"\n  }\n}\n");
  EXPECT_EQ(format_weight_index({}, "index.json"),
            "{\n  \"metadata\": {},\n  \"weight_map\": {}\n}\n");
}

TEST(WeightIndex, OtherKeys_ArePassedOver) {
  const WeightIndex index =
      parse_index(R"({"format":[1,-1,{"weight_map":{"x":1}},null],"weight_map":{"w":"m"},)"
                  R"("metadata":{"total_parameters":3,"x":{"total_size":5},"total_size":7}})");
  EXPECT_EQ(index.total_size, 7u);
  EXPECT_EQ(index.weight_map.size(), 1u);
}

TEST(WeightIndex, OfTheOlderKind_IsTheMapItself) {
  const WeightIndex index = parse_index(R"({"w": "first.bin", "v": "second.bin"})");
  EXPECT_EQ(index.total_size, std::nullopt);
  EXPECT_EQ(index.weight_map.at("v"), "second.bin");
  EXPECT_EQ(
      parse_index(R"({"note": "x", "weight_map": {"w": "y"}, "more": "z"})").weight_map.size(), 1u);
  EXPECT_EQ(
      index_refusal(R"({"w": "../x"})"),
      "index.json: tensor 'w': its file '../x' is not the plain name of a file in the same folder");
  for (const char* text :
       {R"({"w": "a", "v": 1})", R"({"w": "a", "v": {}})", R"({"w": "a", "v": []})"})
    EXPECT_EQ(index_refusal(text), "index.json: weight_map is missing");
}

TEST(WeightIndex, TotalSizeThatIsNoWholeNumber_IsNone) {
  for (const char* metadata :
       {"{\"total_size\":1.5}", "{\"total_size\":-1}", "{\"total_size\":\"1\"}", "{}", "null",
        "[1]", "{\"total_size\":[1]}", "[{\"total_size\":1},2]", "[{\"total_size\":{}},2]"})
    EXPECT_EQ(
        parse_index("{\"metadata\":" + std::string(metadata) + ",\"weight_map\":{}}").total_size,
        std::nullopt)
        << metadata;
}

TEST(WeightIndex, WhatIsNoObjectWithAMap_IsRefused) {
  EXPECT_EQ(index_refusal("{}"), "index.json: weight_map is missing");
  EXPECT_EQ(index_refusal("[]"), "index.json: it must be one JSON object, not an array");
  EXPECT_EQ(index_refusal("null"), "index.json: it must be one JSON object, not null");
  EXPECT_EQ(index_refusal("3"), "index.json: it must be one JSON object, not a number");
  const std::vector<std::pair<std::string, std::string>> values = {
      {"[]", "an array"}, {"1", "a number"},     {"-1", "a number"},  {"1.5", "a number"},
      {"null", "null"},   {"true", "a boolean"}, {"\"\"", "a string"}};
  for (const auto& [value, name] : values)
    EXPECT_EQ(index_refusal("{\"weight_map\":" + value + "}"),
              "index.json: weight_map must be an object, not " + name);
}

TEST(WeightIndex, FilesOfOtherThanStrings_AreRefused) {
  const std::vector<std::pair<std::string, std::string>> values = {
      {"[]", "an array"}, {"1", "a number"},     {"-1", "a number"}, {"1.5", "a number"},
      {"null", "null"},   {"true", "a boolean"}, {"{}", "an object"}};
  for (const auto& [value, name] : values)
    EXPECT_EQ(index_refusal("{\"weight_map\":{\"v\":\"m\",\"w\":" + value + "}}"),
              "index.json: tensor 'w': its file must be a string, not " + name);
}

TEST(WeightIndex, FilesThatAreNoPlainNames_AreRefused) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"", ""},
      {".", "."},
      {"..", ".."},
      {"../m", "../m"},
      {"/etc/passwd", "/etc/passwd"},
      {"a/b", "a/b"},
      {"a\\\\b", "a\\b"},
      {"C:m", "C:m"},
      {"m\\u0000.safetensors", "m\\x00.safetensors"},
      {"m\\n", "m\\x0a"},
      {"m\\u007f", "m\\x7f"}};
  for (const auto& [name, for_message] : names)
    EXPECT_EQ(index_refusal("{\"weight_map\":{\"w\":\"" + name + "\"}}"),
              "index.json: tensor 'w': its file '" + for_message +
                  "' is not the plain name of a file in the same folder");
  EXPECT_EQ(parse_index("{\"weight_map\":{\"w\":\"..m..\"}}").weight_map.at("w"), "..m..");
  EXPECT_EQ(
      parse_index("{\"weight_map\":{\"w\":\"" + std::string(255, 'm') + "\"}}").weight_map.size(),
      1u);
  EXPECT_NE(index_refusal("{\"weight_map\":{\"w\":\"" + std::string(256, 'm') + "\"}}")
                .find("…' is not the plain name"),
            std::string::npos);
}

TEST(WeightIndex, KeysGivenTwice_AreRefused) {
  EXPECT_EQ(index_refusal(R"({"weight_map":{"w":"a","w":"a"}})"),
            "index.json: tensor 'w': 'w' is given twice");
  EXPECT_EQ(index_refusal(R"({"weight_map":{"w":"a","\u0077":"b"}})"),
            "index.json: tensor 'w': 'w' is given twice");
  EXPECT_EQ(index_refusal(R"({"weight_map":{},"weight_map":{}})"),
            "index.json: 'weight_map' is given twice");
  EXPECT_EQ(index_refusal(R"({"metadata":{"total_size":1,"total_size":2},"weight_map":{}})"),
            "index.json: 'total_size' is given twice");
  EXPECT_EQ(index_refusal(R"({"x":[{"y":1},{"y":1,"y":1}],"weight_map":{}})"),
            "index.json: 'y' is given twice");
}

TEST(WeightIndex, DeepNesting_IsRefusedAtOnce) {
  const auto nested = [](size_t levels) {
    return "{\"x\":" + std::string(levels, '[') + std::string(levels, ']') + ",\"weight_map\":{}}";
  };
  EXPECT_EQ(index_refusal(nested(kMaxIndexDepth - 1)), "accepted");
  EXPECT_EQ(index_refusal(nested(kMaxIndexDepth)), "index.json: it nests deeper than 16 levels");
  EXPECT_EQ(index_refusal("{\"x\":" + std::string(1'000'000, '[')),
            "index.json: it nests deeper than 16 levels");
}

TEST(WeightIndex, BrokenSyntax_NamesThePosition) {
  for (const char* text :
       {"", "{", "{\"weight_map\":{}} x", "{\"weight_map\":{},}", "{/**/}",
        "{\"weight_map\":{\"\xff\":\"m\"}}", "{\"weight_map\":{\"\\ud800\":\"m\"}}"})
    EXPECT_EQ(index_refusal(text).find("index.json: it is not valid JSON in UTF-8, at its byte "),
              0u)
        << index_refusal(text);
  EXPECT_EQ(index_refusal(std::string("{\"weight_map\":{}}\0{", 19)),
            "index.json: it holds a NUL byte");
}

TEST(WeightIndex, TextsThatAreTooLong_AreRefusedUnread) {
  EXPECT_EQ(index_refusal(std::string(kMaxIndexBytes + 1, ' ')),
            "index.json: its 67108865 bytes exceed the limit of 67108864");
}

TEST(WeightIndex, TooManyTensors_AreRefused) {
  WeightIndex index;
  std::string text = "{\"weight_map\":{";
  for (uint64_t i = 0; i <= safetensors::kMaxTensors; ++i) {
    text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"m\"";
    index.weight_map[std::to_string(i)] = "m";
  }
  EXPECT_EQ(index_refusal(text + "}}"), "index.json: weight_map names more than 262144 tensors");
  EXPECT_EQ(format_refusal(index), "index.json: weight_map names more than 262144 tensors");
}

TEST(WeightIndex, WhatNoReaderWouldTake_IsNotFormatted) {
  EXPECT_EQ(format_refusal({.total_size = 1, .weight_map = {{"\xff", "m"}}}),
            "index.json: tensor '\\xff': the name is not valid UTF-8");
  EXPECT_EQ(
      format_refusal({.total_size = 1, .weight_map = {{"w", "a/b"}}}),
      "index.json: tensor 'w': its file 'a/b' is not the plain name of a file in the same folder");
  EXPECT_EQ(format_refusal({.total_size = 1, .weight_map = {{"w", "\xc3"}}}),
            "index.json: tensor 'w': its file '\\xc3' is not the plain name of a file in the same "
            "folder");
}

TEST(WeightIndex, NamesFromTheFile_AreShownShortAndWithoutControlCharacters) {
  EXPECT_EQ(index_refusal(R"({"weight_map":{"a\u001b[31m":1}})"),
            "index.json: tensor 'a\\x1b[31m': its file must be a string, not a number");
  // Cut between characters, not inside one.
  std::string long_name = "x";
  for (int i = 0; i < 100; ++i) long_name += "é";
  const std::string message = index_refusal("{\"weight_map\":{\"" + long_name + "\":1}}");
  EXPECT_NE(message.find("é…': its file"), std::string::npos) << message;
}

}  // namespace
}  // namespace coupler::formats
