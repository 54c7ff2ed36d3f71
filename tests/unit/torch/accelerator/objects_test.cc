#include <coupler/objects.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "refusal.h"

namespace coupler::testing {

struct Score {
  std::string name;
  double value = 0;
};
void to_json(nlohmann::json& json, const Score& score) {
  if (score.name == "bad") throw std::runtime_error("the user's to_json threw");
  json = {{"name", score.name}, {"value", score.value}};
}
void from_json(const nlohmann::json& json, Score& score) {
  json.at("name").get_to(score.name);
  json.at("value").get_to(score.value);
}

namespace {

template <class T>
T there_and_back(const T& value) {
  const auto encoded = detail::encode_object(value);
  EXPECT_EQ(encoded.problem, "");
  return detail::decode_object<T>("gather_object", 0, encoded.bytes);
}

void expect_refused(const detail::ObjectBytes& bytes, const std::string& part) {
  expect_error(ErrorCode::kMismatch, part,
               [&] { detail::decode_object<nlohmann::json>("gather_object", 3, bytes); });
  expect_error(ErrorCode::kMismatch, "gather_object: the data from rank 3 is not a valid object",
               [&] { detail::decode_object<nlohmann::json>("gather_object", 3, bytes); });
}

TEST(Objects, EncodeDecode_PlainData_Unchanged) {
  EXPECT_EQ(there_and_back(std::string("häh\0x", 6)), std::string("häh\0x", 6));
  EXPECT_EQ(there_and_back(std::vector<int64_t>{-1, int64_t{1} << 62}),
            (std::vector<int64_t>{-1, int64_t{1} << 62}));
  EXPECT_TRUE(std::isnan(there_and_back(std::nan(""))));
  EXPECT_EQ(there_and_back(-std::numeric_limits<double>::infinity()),
            -std::numeric_limits<double>::infinity());
  const std::map<std::string, bool> map = {{"a", true}, {"", false}};
  EXPECT_EQ(there_and_back(map), map);
  EXPECT_EQ(there_and_back(Score{"f1", 0.5}).value, 0.5);
}

TEST(Objects, Encode_UsersConversionThrows_ProblemForThePeers) {
  EXPECT_EQ(detail::encode_object(Score{"bad", 0}).problem, "the user's to_json threw");
}

TEST(Objects, Encode_TooLargeOrTooDeep_ProblemNamesTheLimit) {
  const std::string text(static_cast<size_t>(kMaxObjectBytes), 'x');
  EXPECT_EQ(detail::encode_object(text).problem,
            "it has 67108869 bytes, more than the limit of 67108864");
  nlohmann::json deep = nlohmann::json::array();
  for (int i = 1; i < kMaxObjectDepth; ++i) deep = nlohmann::json::array({std::move(deep)});
  EXPECT_EQ(detail::encode_object(deep).problem, "");
  deep = nlohmann::json::array({std::move(deep)});
  EXPECT_EQ(detail::encode_object(deep).problem, "it is nested more than 500 levels deep");
}

TEST(Objects, Decode_InvalidBytes_ErrorNamesRank) {
  expect_refused({}, "unexpected end of input");
  expect_refused({0x82, 0x01}, "unexpected end of input");  // an array of 2 with 1
  expect_refused({0x01, 0x02}, "expected end of input");    // trailing bytes
  expect_refused({0xff}, "invalid byte");                   // a break without a container
  expect_refused({0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "");  // 2^64 elements
  // So deep that a recursive parser would run out of stack.
  expect_refused(detail::ObjectBytes(size_t{32} << 20, 0x81), "nested more than 500 levels deep");
}

TEST(Objects, Decode_AnotherType_ErrorNamesRank) {
  const auto text = detail::encode_object(std::string("a")).bytes;
  expect_error(ErrorCode::kMismatch, "the data from rank 1 is not a valid object",
               [&] { detail::decode_object<int>("gather_object", 1, text); });
  expect_error(ErrorCode::kMismatch, "key 'value' not found", [&] {
    detail::decode_object<Score>("gather_object", 1,
                                 detail::encode_object(nlohmann::json{{"name", "x"}}).bytes);
  });
}

}  // namespace
}  // namespace coupler::testing
