#include <coupler/error.h>
#include <coupler/row.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "datasets/features.h"
#include "refusal.h"

namespace coupler {
namespace {

using testing::refusal_of;

std::string row_refusal(const std::function<void()>& action) {
  return refusal_of(ErrorCode::kInvalidArgument, action);
}

TEST(Row, Values_AreConverted) {
  const Row row{{"i", 3},
                {"d", 2.5},
                {"s", "text"},
                {"b", true},
                {"n", nullptr},
                {"l", std::vector<int64_t>{1, 2}},
                {"w", std::vector<std::string>{"a"}},
                {"r", Row{{"x", uint8_t{7}}}},
                {"e", Value::List{}}};
  EXPECT_EQ(row.get<int>("i"), 3);
  EXPECT_EQ(row.get<double>("i"), 3.0);
  EXPECT_EQ(row.get<float>("d"), 2.5F);
  EXPECT_EQ(row.get<std::string>("s"), "text");
  EXPECT_TRUE(row.get<bool>("b"));
  EXPECT_TRUE(row["n"].is_null());
  EXPECT_EQ(row.get<std::vector<int64_t>>("l"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(row.get<std::vector<double>>("l"), (std::vector<double>{1, 2}));
  EXPECT_EQ(row.get<std::vector<std::string>>("w"), std::vector<std::string>{"a"});
  EXPECT_EQ(row.get<std::vector<int64_t>>("e"), std::vector<int64_t>{});
  EXPECT_EQ(row.get<Row>("r").get<int8_t>("x"), 7);
  EXPECT_EQ(
      to_string(row),
      R"({"i":3,"d":2.5,"s":"text","b":true,"n":null,"l":[1,2],"w":["a"],"r":{"x":7},"e":[]})");
  EXPECT_EQ(to_string(Value("\xff")), "\"\ufffd\"");
}

TEST(Row, WrongTypes_AreRefusedByName) {
  const Row row{{"label", 300}, {"text", "x"}, {"none", Value()}, {"flag", true}};
  EXPECT_EQ(row_refusal([&] { row["lable"]; }),
            "there is no column 'lable'; did you mean 'label'?");
  EXPECT_EQ(row_refusal([&] { row.get<std::string>("label"); }),
            "column 'label' is int64, not string: 300");
  EXPECT_EQ(row_refusal([&] { row.get<int8_t>("label"); }),
            "column 'label' is int64, not an integer of the wanted size: 300");
  EXPECT_EQ(row_refusal([&] { row.get<int>("flag"); }),
            "column 'flag' is bool, not an integer: true");
  EXPECT_EQ(row_refusal([&] { row.get<std::vector<int64_t>>("none"); }),
            "column 'none' is null, and a list of integers was asked for");
}

TEST(Row, Columns_AreSetAndRemoved) {
  Row row{{"a", 1}};
  const Row copy = row;
  row.set("b", "x");
  row.set("a", 2);
  EXPECT_EQ(row, (Row{{"a", 2}, {"b", "x"}}));
  row.remove("a");
  EXPECT_EQ(row, (Row{{"b", "x"}}));
  EXPECT_EQ(copy, (Row{{"a", 1}}));
  testing::expect_error(ErrorCode::kInvalidArgument, "no column 'a'", [&] { row.remove("a"); });
  testing::expect_error(ErrorCode::kInvalidArgument, "column 'a' is given twice", [] {
    Row{{"a", 1}, {"a", 2}};
  });
}

// Whatever order types are joined in, the result is the same.
TEST(Features, Merging_DoesNotDependOnTheOrder) {
  const std::vector<Value> values = {Value(),
                                     1,
                                     2.5,
                                     "x",
                                     true,
                                     Value::List{},
                                     std::vector<int64_t>{1},
                                     std::vector<double>{1},
                                     Value::List{Value(), "x"},
                                     Row{{"a", 1}},
                                     Row{{"b", "x"}},
                                     Row{{"a", "x"}},
                                     Value::List{Row{{"a", 1}}, Row{{"a", 2.5}, {"c", Value()}}}};
  for (const Value& one : values) {
    for (const Value& two : values) {
      Feature forth = datasets::feature_of(one), back = datasets::feature_of(two);
      const bool fits = datasets::merge(forth, two);
      EXPECT_EQ(datasets::merge(back, one), fits) << to_string(one) << to_string(two);
      if (!fits) continue;
      if (one.type() != FeatureType::kStruct) {
        EXPECT_EQ(forth, back);
      }
      for (Value value : {one, two}) {
        EXPECT_TRUE(datasets::conform(value, forth)) << to_string(value);
        Feature joined = datasets::feature_of(value);
        EXPECT_TRUE(datasets::merge(joined, forth));
      }
    }
  }
}

}  // namespace
}  // namespace coupler
