#include <ATen/Functions.h>
#include <coupler/nested.h>

#include "refusal.h"

namespace coupler::testing {
namespace {

using Map = std::map<std::string, at::Tensor>;
constexpr auto kInvalid = ErrorCode::kInvalidArgument;

TEST(NestedOps, SendToDevice_SkipKeys_StayWhereTheyAre) {
  const Map map = {{"moved", at::ones({2}, at::kLong)}, {"kept", at::ones({2})}, {"none", {}}};
  const Map result = send_to_device(map, at::kMeta, false, {"kept"});
  EXPECT_TRUE(result.at("moved").is_meta());
  EXPECT_EQ(result.at("moved").scalar_type(), at::kLong);
  EXPECT_TRUE(result.at("kept").is_cpu());
  EXPECT_FALSE(result.at("none").defined());
}

TEST(NestedOps, SliceTensors_RowsOfEveryLeaf_AsViews) {
  const std::vector<at::Tensor> value = {at::arange(5), at::arange(10).view({5, 2})};
  const auto result = slice_tensors(value, 1, -1);
  EXPECT_TRUE(at::equal(result[0], at::arange(1, 4)));
  EXPECT_TRUE(at::equal(result[1], at::arange(2, 8).view({3, 2})));
  EXPECT_TRUE(result[0].is_alias_of(value[0]));
  EXPECT_EQ(slice_tensors(value, 4, 9)[0].size(0), 1);
}

TEST(NestedOps, SliceTensors_Scalar_ErrorNamesLeaf) {
  const Map map = {{"loss", at::ones({})}};
  expect_error(kInvalid, "value[\"loss\"] is a scalar", [&] { slice_tensors(map, 0, 1); });
}

TEST(NestedOps, Concatenate_Structures_LeafByLeaf) {
  const std::vector<Map> values = {{{"a", at::zeros({1, 2})}, {"u", {}}},
                                   {{"a", at::ones({3, 2})}, {"u", {}}}};
  const Map joined = concatenate(values);
  EXPECT_EQ(joined.at("a").sizes(), at::IntArrayRef({4, 2}));
  EXPECT_EQ(joined.at("a").sum().item<double>(), 6);
  EXPECT_FALSE(joined.at("u").defined());
  EXPECT_EQ(concatenate<at::Tensor>({at::zeros({2, 1}), at::zeros({2, 4})}, -1).size(1), 5);
}

TEST(NestedOps, Concatenate_DifferentElements_ErrorNamesPlaceAndElement) {
  expect_error(kInvalid, "no values are given", [] { concatenate<at::Tensor>({}); });
  expect_error(kInvalid,
               "value is a map with the keys [\"a\"] in element 0 and a map with the keys [\"b\"]",
               [] {
                 concatenate<Map>({{{"a", at::ones({1})}}, {{"b", at::ones({1})}}});
               });
  expect_error(kInvalid, "value[\"a\"] is Float [1, 2] in element 0 and Float [1, 3] in element 1",
               [] {
                 concatenate<Map>({{{"a", at::ones({1, 2})}}, {{"a", at::ones({1, 3})}}});
               });
  expect_error(kInvalid, "Float [2] in element 0 and Long [2] in element 2", [] {
    concatenate<at::Tensor>({at::ones({2}), at::ones({1}), at::ones({2}, at::kLong)});
  });
  expect_error(kInvalid, "value is Float [] and has no dimension 0", [] {
    concatenate<at::Tensor>({at::ones({}), at::ones({})});
  });
}

TEST(NestedOps, FindBatchSize_FirstTensor_ItsRows) {
  EXPECT_EQ(find_batch_size(std::vector<at::Tensor>{at::Tensor(), at::ones({3, 2})}), 3);
  expect_error(kInvalid, "the first tensor is a scalar", [] { find_batch_size(at::ones({})); });
  expect_error(kInvalid, "contains no tensor", [] { find_batch_size(std::vector<at::Tensor>{}); });
}

}  // namespace
}  // namespace coupler::testing
