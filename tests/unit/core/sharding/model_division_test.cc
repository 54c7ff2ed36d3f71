// What a plan divides of a model, by names and sizes.
#include "sharding/model_division.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "refusal.h"
#include "sharding/decoder_plan.h"

namespace coupler::sharding {
namespace {

using Sizes = std::vector<int64_t>;

PlannedModel small_model() {
  return {.modules = {{"", "Net"},
                      {"words", "torch::nn::EmbeddingImpl"},
                      {"up", "torch::nn::LinearImpl"},
                      {"down", "torch::nn::LinearImpl"},
                      {"fused", "Conv1D"},
                      {"norm", "torch::nn::LayerNormImpl"},
                      {"head", "torch::nn::LinearImpl"}},
          .parameters = {{"words.weight", {10, 4}},
                         {"up.weight", {8, 4}},
                         {"up.bias", {8}},
                         {"down.weight", {4, 8}},
                         {"down.bias", {4}},
                         {"fused.weight", {4, 12}},
                         {"fused.bias", {12}},
                         {"norm.weight", {4}}},
          .aliases = {{"head.weight", "words.weight"}}};
}

std::vector<PlannedLayers> plan_of(const std::vector<std::string>& lines) {
  std::vector<PlannedLayers> plan;
  for (const std::string& line : lines) plan.push_back(planned_layers(line));
  return plan;
}

ModelDivision divided(const std::vector<std::string>& lines, int ranks = 2, int rank = 1) {
  return divide_model(small_model(), {plan_of(lines)}, ranks, rank);
}

// With the sequence divided, too.
ModelDivision divided_with_sequence(const std::vector<std::string>& lines) {
  return divide_model(small_model(), {plan_of(lines)}, 2, 1, /*sequence=*/true);
}

void expect_refusal(const std::string& part, const std::vector<std::string>& lines, int ranks = 2) {
  testing::expect_error(ErrorCode::kConfig, part, [&] { divided(lines, ranks); });
}

TEST(ModelDivision, EachStyle_DividesItsDimension) {
  const ModelDivision result =
      divided({"words = vocab", "head = colwise_gather", "up = colwise", "down = rowwise",
               "fused = colwise/3", "norm = sum_gradients"});
  const auto part = [&](size_t index) { return result.parameters.at(index).part_sizes(); };
  EXPECT_EQ(part(0), (Sizes{5, 4}));
  EXPECT_EQ(part(1), (Sizes{4, 4}));
  EXPECT_EQ(part(2), (Sizes{4}));
  EXPECT_EQ(part(3), (Sizes{4, 4}));
  EXPECT_EQ(result.parameters.count(4), 0u) << "the bias of a rowwise layer is whole";
  EXPECT_EQ(part(5), (Sizes{4, 6})) << "Conv1D has its outputs last";
  EXPECT_EQ(part(6), (Sizes{6}));
  EXPECT_EQ(result.summed, std::vector<size_t>{7});
  // Rank 1's queries, keys and values are each the second half of four.
  EXPECT_EQ(result.parameters.at(6).elements.in_tensor(0), 2);
  EXPECT_EQ(result.parameters.at(6).elements.in_tensor(2), 6);
  const WeightUse& tied = result.weights.at(0);
  EXPECT_EQ(tied.lookup_name, "words");
  EXPECT_EQ(tied.product_name, "head");
  EXPECT_TRUE(result.weights.at(5).transposed);
}

TEST(ModelDivision, TheFirstPlan_ThatNamesAModuleCounts) {
  const ModelDivision result =
      divide_model(small_model(),
                   {{planned_layers("up = replicate")},
                    {planned_layers("up = colwise"), planned_layers("down = rowwise")}},
                   2, 0);
  EXPECT_EQ(result.parameters.count(1), 0u);
  EXPECT_EQ(result.parameters.count(3), 1u);
}

TEST(ModelDivision, WhatDoesNotFit_IsRefusedByName) {
  expect_refusal("'up.weight' is [8, 4], and the 8 of dimension 0 cannot be divided over 3 ranks",
                 {"up = colwise"}, 3);
  expect_refusal("\"blocks.* = colwise\" matches no module of the model", {"blocks.* = colwise"});
  expect_refusal("'words' is a torch::nn::EmbeddingImpl, but", {"words = colwise"});
  expect_refusal("'norm' cannot be divided", {"norm = colwise"});
  expect_refusal("the weight of 'words' is also that of 'head', which the plan does not divide",
                 {"words = vocab"});
  expect_refusal("belongs to two layers, which the plan divides in different ways",
                 {"words = vocab", "head = rowwise"});
}

// "up" is [8, 4] and "down" [4, 8]; each with a product of rank 2.
PlannedModel adapted_model() {
  PlannedModel model = small_model();
  for (PlannedModel::Parameter& parameter : model.parameters) parameter.trains = false;
  for (const auto& [layer, out, in] :
       {std::tuple<std::string, int64_t, int64_t>("up", 8, 4), {"down", 4, 8}}) {
    model.modules.push_back({layer + ".lora_A", "LoraMatrix"});
    model.modules.push_back({layer + ".lora_B", "LoraMatrix"});
    model.parameters.push_back({layer + ".lora_A.weight", {2, in}});
    model.parameters.push_back({layer + ".lora_B.weight", {out, 2}});
  }
  return model;
}

TEST(ModelDivision, LoraProducts_AreDividedAsTheirLayers) {
  const PlannedModel model = adapted_model();
  const std::vector<PlannedLayers> plan = plan_of({"up = colwise", "down = rowwise"});
  const ModelDivision result = divide_model(model, {plan}, 2, 1);
  // A and B of "up", then of "down".
  EXPECT_EQ(result.parameters.count(8), 0u);
  EXPECT_EQ(result.parameters.at(9).part_sizes(), (Sizes{4, 2}));
  EXPECT_EQ(result.parameters.at(10).part_sizes(), (Sizes{2, 4}));
  EXPECT_EQ(result.parameters.count(11), 0u);
  EXPECT_EQ(result.weights.at(9).product.style, TensorStyle::kColwise);
  EXPECT_EQ(result.weights.at(10).product.style, TensorStyle::kRowwise);
  EXPECT_TRUE(result.summed.empty());
  // With parts of the sequence, the whole ones see a part. All that trains belongs to a layer.
  const ModelDivision parts = divide_model(model, {plan}, 2, 1, /*sequence=*/true);
  EXPECT_EQ(parts.summed, (std::vector<size_t>{8, 11}));
  EXPECT_EQ(parts.parameters.count(9), 1u);
}

TEST(SequenceDivision, SumsTheGradients_OfWhatSeesAPart) {
  const ModelDivision result =
      divided_with_sequence({"words = vocab", "head = vocab", "up = colwise", "down = rowwise",
                             "fused = shared", "norm = sequence"});
  // The bias of the rowwise layer, the shared layer, and the norm.
  EXPECT_EQ(result.summed, (std::vector<size_t>{4, 5, 6, 7}));
  EXPECT_TRUE(result.weights.at(0).divided);
  EXPECT_FALSE(result.weights.at(5).divided);
}

TEST(SequenceDivision, LeavesAnEmbeddingAndItsHeadWhole) {
  const ModelDivision result =
      divided_with_sequence({"words = sequence", "head = gather_sequence", "up = colwise",
                             "down = rowwise", "fused = replicate", "norm = sequence_parallel"});
  EXPECT_EQ(result.parameters.count(0), 0u);
  const WeightUse& tied = result.weights.at(0);
  EXPECT_FALSE(tied.divided);
  EXPECT_EQ(tied.lookup_name, "words");
  EXPECT_EQ(tied.product_name, "head");
  EXPECT_EQ(tied.product.style, TensorStyle::kGatherSequence);
  EXPECT_EQ(result.summed, (std::vector<size_t>{4, 7})) << "the embedding sees all tokens";
}

TEST(SequenceDivision, ChangesNothing_IfItIsOff) {
  const ModelDivision result = divided({"words = sequence", "head = gather_sequence",
                                        "up = colwise", "down = rowwise", "norm = sequence"});
  EXPECT_TRUE(result.summed.empty());
  EXPECT_EQ(result.weights.count(0), 0u);
}

TEST(SequenceDivision, StatisticsOfAllTokens_AreRefusedForAPart) {
  PlannedModel model = small_model();
  model.modules[5].type = "torch::nn::BatchNorm1dImpl";
  const std::vector<std::string> lines = {"words = sequence", "head = gather_sequence",
                                          "up = colwise",     "down = rowwise",
                                          "fused = shared",   "norm = sequence"};
  testing::expect_error(ErrorCode::kConfig, "'norm' is a torch::nn::BatchNorm1dImpl, whose",
                        [&] { divide_model(model, {plan_of(lines)}, 2, 1, /*sequence=*/true); });
  EXPECT_NO_THROW(divide_model(model, {plan_of(lines)}, 2, 1)) << "all ranks see all tokens";
}

TEST(SequenceDivision, WhatDoesNotFit_IsRefusedByName) {
  const auto expect_sequence_refusal = [](const std::string& part,
                                          const std::vector<std::string>& lines) {
    testing::expect_error(ErrorCode::kConfig, part, [&] { divided_with_sequence(lines); });
  };
  expect_sequence_refusal(
      "no line of the tensor plan says whether 'norm' sees a part of it",
      {"words = vocab", "head = vocab", "up = colwise", "down = rowwise", "fused = colwise/3"});
  expect_sequence_refusal("no line of the tensor plan says whether 'head' sees a part of it",
                          {"words = sequence", "up = colwise", "down = rowwise",
                           "fused = colwise/3", "norm = sequence"});
  for (const char* head : {"head = sequence", "head = shared", "head = colwise_gather"}) {
    expect_sequence_refusal("belongs to two layers, which the plan divides in different ways",
                            {"words = sequence", head, "up = colwise", "down = rowwise",
                             "fused = colwise/3", "norm = sequence"});
  }
  expect_sequence_refusal("belongs to two layers, which the plan divides in different ways",
                          {"words = vocab", "head = gather_sequence", "up = colwise",
                           "down = rowwise", "fused = colwise/3", "norm = sequence"});
}

TEST(DecoderPlan, Heads_StayTogether) {
  PlannedModel model{.modules = {{"model.layers.0.self_attn.q_proj", ""}},
                     .parameters = {{"model.layers.0.self_attn.q_proj.weight", {24, 8}}}};
  const DecoderLayers layers{.embedding = "",
                             .head = "",
                             .key = "",
                             .value = "",
                             .output = "",
                             .gate = "",
                             .up = "",
                             .down = ""};
  const DecoderSizes sizes{.vocabulary = 9, .head_size = 8, .key_heads = 3};
  std::vector<PlannedLayers> plan;
  for (const PlanRule& rule : plan_of_decoder(layers, sizes, 2))
    plan.push_back(planned_layers(rule));
  testing::expect_error(ErrorCode::kConfig,
                        "the 24 of dimension 0 cannot be divided over 2 ranks in multiples of 8",
                        [&] { divide_model(model, {plan}, 2, 0); });
  EXPECT_EQ(divide_model(model, {plan}, 3, 0).parameters.at(0).part_sizes(), (Sizes{8, 8}));
}

TEST(DecoderPlan, Vocabulary_IsDividedIfItDivides) {
  for (const int64_t words : {10, 11}) {
    const auto plan = plan_of_decoder({}, {.vocabulary = words, .head_size = 4, .key_heads = 1}, 2);
    bool divides = false, shares = false, gathers = false;
    for (const PlanRule& rule : plan) {
      divides = divides || rule.style == "vocab";
      shares = shares || (rule.pattern.ends_with("k_proj") && rule.style == "shared");
      gathers = gathers || (rule.pattern == "lm_head" && rule.style == "gather_sequence");
    }
    EXPECT_EQ(divides, words == 10);
    EXPECT_EQ(gathers, words == 11);
    EXPECT_TRUE(shares);
  }
}

}  // namespace
}  // namespace coupler::sharding
