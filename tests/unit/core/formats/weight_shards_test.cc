#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "formats/weight_index.h"
#include "refusal.h"

namespace coupler::formats {
namespace {

using Names = std::vector<std::string>;

std::string shards_refusal(const std::vector<SizedTensor>& tensors) {
  return testing::refusal_of(ErrorCode::kInvalidArgument, [&] { divide_weights(tensors, 10); });
}

TEST(DivideWeights, RandomCases_AreDividedAsByHuggingfaceHub) {
  std::ifstream in(std::string(COUPLER_SOURCE_DIR) +
                   "/tests/unit/core/formats/fixtures/weight_shards.json");
  const auto cases = nlohmann::json::parse(in);
  EXPECT_EQ(cases.size(), 40u);
  for (const auto& one : cases) {
    SCOPED_TRACE(one.dump());
    // huggingface_hub receives all names of a tied tensor, divide_weights only the first.
    std::vector<SizedTensor> tensors;
    std::set<uint64_t> storages;
    std::set<std::string> further;
    for (const auto& tensor : one["tensors"]) {
      const auto& storage = tensor["storage"];
      if (storage.is_null() || storages.insert(storage.get<uint64_t>()).second)
        tensors.push_back({tensor["name"], tensor["bytes"]});
      else
        further.insert(tensor["name"].get<std::string>());
    }
    const WeightFiles weights = divide_weights(tensors, one["limit"]);
    EXPECT_EQ(weights.total_size, one["total_size"].get<uint64_t>());
    ASSERT_EQ(weights.files.size(), one["files"].size());
    for (size_t i = 0; i < weights.files.size(); ++i) {
      EXPECT_EQ(weights.files[i].name, one["files"][i][0].get<std::string>());
      auto names = one["files"][i][1].get<Names>();
      std::erase_if(names, [&](const auto& name) { return further.contains(name); });
      EXPECT_EQ(weights.files[i].tensors, names);
    }
  }
}

TEST(DivideWeights, WhatFitsOneFile_IsModelSafetensors) {
  const auto weights = divide_weights({{"a", 4}, {"b", 6}}, 10);
  ASSERT_EQ(weights.files.size(), 1u);
  EXPECT_EQ(weights.files[0].name, "model.safetensors");
  EXPECT_EQ(weights.files[0].tensors, (Names{"a", "b"}));
  EXPECT_EQ(weights.total_size, 10u);
}

TEST(DivideWeights, ATensorAboveTheLimit_GetsAFileAheadOfTheOpenOne) {
  const auto weights = divide_weights({{"a", 4}, {"large", 11}, {"b", 6}}, 10);
  ASSERT_EQ(weights.files.size(), 2u);
  EXPECT_EQ(weights.files[0].name, "model-00001-of-00002.safetensors");
  EXPECT_EQ(weights.files[0].tensors, Names{"large"});
  EXPECT_EQ(weights.files[1].tensors, (Names{"a", "b"}));
}

TEST(DivideWeights, NoTensors_MakeNoFile) {
  const auto weights = divide_weights({}, 10);
  EXPECT_TRUE(weights.files.empty());
  EXPECT_EQ(weights.total_size, 0u);
}

TEST(DivideWeights, Index_LeadsToEveryTensor) {
  const auto index = index_of(divide_weights({{"a", 8}, {"b", 6}, {"c", 2}}, 10));
  EXPECT_EQ(index.total_size, 16u);
  EXPECT_EQ(index.weight_map,
            (decltype(index.weight_map){{"a", "model-00001-of-00002.safetensors"},
                                        {"b", "model-00002-of-00002.safetensors"},
                                        {"c", "model-00002-of-00002.safetensors"}}));
}

TEST(DivideWeights, SizesNearTheLargestNumber_DoNotWrapAround) {
  constexpr auto kMax = std::numeric_limits<uint64_t>::max();
  const auto weights = divide_weights({{"a", kMax - 1}, {"b", 1}}, kMax - 1);
  EXPECT_EQ(weights.files.size(), 2u);
  EXPECT_EQ(shards_refusal({{"a", kMax}, {"b", 1}}),
            "tensor 'b': with the preceding tensors there are more than 2^64 - 1 bytes");
}

TEST(DivideWeights, ANameGivenTwice_IsRefused) {
  EXPECT_EQ(shards_refusal({{"w", 1}, {"w", 1}}), "tensor 'w': the name is given twice");
}

}  // namespace
}  // namespace coupler::formats
