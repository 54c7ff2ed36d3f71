#include <ATen/Functions.h>
#include <coupler/nested.h>
#include <gtest/gtest.h>
#include <torch/data/example.h>

namespace coupler::testing {
struct Output {
  at::Tensor loss;
  std::map<std::string, at::Tensor> scores;
  int steps = 0;  // not listed below: copied unchanged
};
}  // namespace coupler::testing

template <>
struct coupler::NestedFields<coupler::testing::Output> {
  using Output = coupler::testing::Output;
  static constexpr auto fields =
      std::make_tuple(nested_field("loss", &Output::loss), nested_field("scores", &Output::scores));
};

namespace coupler::testing {
namespace {

using Tree = std::map<std::string, std::vector<std::pair<at::Tensor, std::optional<at::Tensor>>>>;

at::Tensor plus_one(const at::Tensor& leaf) { return leaf + 1; }

template <class T>
std::string described(const T& value) {
  std::string text;
  for (const auto& leaf : describe_leaves(value)) text += leaf.path + "=" + to_string(leaf) + ";";
  return text;
}

TEST(Nested, IsNested_OtherTypes_False) {
  static_assert(is_nested_v<at::Tensor> && is_nested_v<Tree> && is_nested_v<Output>);
  static_assert(is_nested_v<torch::data::Example<>> && is_nested_v<torch::data::TensorExample>);
  static_assert(is_nested_v<std::tuple<at::Tensor, std::array<at::Tensor, 2>>>);
  static_assert(!is_nested_v<int> && !is_nested_v<std::string> &&
                !is_nested_v<std::vector<float>> && !is_nested_v<std::pair<at::Tensor, int>> &&
                !is_nested_v<std::map<int, at::Tensor>>);
}

TEST(Nested, DescribeLeaves_MapOfVectorsOfPairs_PathsInOrder) {
  const Tree tree = {
      {"logits", {{at::zeros({2, 3}), std::nullopt}, {at::zeros({}), at::zeros({0})}}}, {"a", {}}};
  EXPECT_EQ(described(tree),
            "[\"logits\"][0].first=Float [2, 3];[\"logits\"][1].first=Float [];"
            "[\"logits\"][1].second=Float [0];");
}

TEST(Nested, DescribeLeaves_SingleTensor_EmptyPath) {
  EXPECT_EQ(described(at::ones({1}, at::kLong)), "=Long [1];");
  EXPECT_EQ(described(at::Tensor()), "=undefined;");
}

TEST(Nested, DescribeLeaves_KeyThatIsNoPlainText_Escaped) {
  const std::map<std::string, at::Tensor> map = {{std::string("a\"\n\0", 4), at::ones({1})}};
  EXPECT_EQ(described(map), "[\"a\\\"\\x0a\\x00\"]=Float [1];");
}

TEST(Nested, DescribeNodes_EveryKind_SaysWhatItIs) {
  const std::tuple<Tree, std::optional<at::Tensor>> value{{{"k", {}}}, std::nullopt};
  std::string text;
  for (const auto& node : detail::describe_nodes(detail::view_of(value))) {
    text += node.path + ": " + node.what + "\n";
  }
  EXPECT_EQ(
      text,
      ": 2 elements\n[0]: a map with the keys [\"k\"]\n[0][\"k\"]: 0 elements\n[1]: nothing\n");
}

TEST(Nested, RecursivelyApply_EveryKind_SameStructureNewLeaves) {
  const at::Tensor one = at::ones({1}), two = at::ones({1}) * 2;
  const std::tuple<std::array<at::Tensor, 2>, torch::data::Example<>, torch::data::TensorExample>
      value{{one, two}, {one, two}, {one}};
  const auto result = recursively_apply(plus_one, value);
  std::vector<double> values;
  for_each_leaf(result, [&](const at::Tensor& leaf) { values.push_back(leaf.item<double>()); });
  EXPECT_EQ(values, (std::vector<double>{2, 3, 2, 3, 2}));
  EXPECT_EQ(one.item<double>(), 1) << "the original was changed";
}

TEST(Nested, RecursivelyApply_UsersStruct_ListedFieldsOnly) {
  const Output result =
      recursively_apply(plus_one, Output{at::zeros({}), {{"a", at::ones({})}}, 7});
  EXPECT_EQ(result.loss.item<double>(), 1);
  EXPECT_EQ(result.scores.at("a").item<double>(), 2);
  EXPECT_EQ(result.steps, 7);
  EXPECT_EQ(described(result), ".loss=Float [];.scores[\"a\"]=Float [];");
}

}  // namespace
}  // namespace coupler::testing
