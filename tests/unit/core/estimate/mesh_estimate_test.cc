// Estimates of a rank of a mesh: layers that are divided as plans say, groups that shard.
#include <coupler/distributed_backend.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "estimate/divide_layers.h"
#include "estimate/settings.h"
#include "estimate/simulate.h"
#include "estimate/transformer.h"
#include "refusal.h"

namespace coupler::estimate {
namespace {

const std::string kLlama = R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 256,
    "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 2,
    "vocab_size": 1000})";

LoggedModel divided_decoder(const std::string& config, int ranks) {
  LoggedModel model = transformer_of(config, "config.json");
  divide_layers(model, {plan_of_transformer(config, "config.json", ranks)}, ranks);
  return model;
}

uint64_t elements_of(const LoggedModel& model) {
  uint64_t result = 0;
  for (const LoggedParameter& p : model.parameters) result += p.numel();
  return result;
}

StepLog log_of(LoggedModel model) {
  StepLog log{.mixed_precision = "no", .models = {}, .optimizer_factor = 2};
  log.models.push_back(std::move(model));
  return log;
}

TEST(MeshEstimate, Decoder_IsDividedAsItsPlanSays) {
  const LoggedModel model = divided_decoder(kLlama, 2);
  std::map<std::string, std::vector<uint64_t>> sizes;
  for (const LoggedParameter& p : model.parameters) sizes[p.name] = p.sizes;
  using Sizes = std::vector<uint64_t>;
  EXPECT_EQ(sizes.at("model.embed_tokens.weight"), (Sizes{500, 64}));
  EXPECT_EQ(sizes.at("model.layers.0.self_attn.q_proj.weight"), (Sizes{32, 64}));
  EXPECT_EQ(sizes.at("model.layers.1.self_attn.k_proj.weight"), (Sizes{16, 64}));
  EXPECT_EQ(sizes.at("model.layers.1.self_attn.o_proj.weight"), (Sizes{64, 32}));
  EXPECT_EQ(sizes.at("model.layers.1.mlp.down_proj.weight"), (Sizes{64, 128}));
  EXPECT_EQ(sizes.at("model.layers.1.input_layernorm.weight"), (Sizes{64}));
  EXPECT_EQ(sizes.at("lm_head.weight"), (Sizes{500, 64}));
  // All but the five norms are halves.
  const uint64_t whole = elements_of(transformer_of(kLlama, "config.json")), norms = 5 * 64;
  EXPECT_EQ(elements_of(model), (whole - norms) / 2 + norms);
}

TEST(MeshEstimate, ParametersGradientsAndState_AreThoseOfTheParts) {
  const LoggedModel model = divided_decoder(kLlama, 2);
  const uint64_t bytes = 4 * elements_of(model);
  const MemoryEstimate estimate =
      estimate_memory(log_of(model), {}, {.averaging = 2, .sharding = 1}, {});
  const auto expect_about = [&](MemoryCategory part, uint64_t expected) {
    EXPECT_GE(estimate.of(part), expected);
    EXPECT_LT(estimate.of(part), expected + expected / 20);
  };
  expect_about(MemoryCategory::kGradients, bytes);
  expect_about(MemoryCategory::kOptimizer, 2 * bytes);
}

constexpr uint64_t kWhole = uint64_t{1} << 28;  // bytes: mapped, so that none is free in a heap

// Of a model of one parameter, of which the rank has a quarter.
uint64_t peak_of_quarter(bool in_memory, uint64_t whole_numel, bool in_chunks) {
  StepLog log = log_of({.name = "Net", .modules = {{"", "Net", -1}}, .parameters = {}});
  log.optimizer_factor = 0;
  log.models[0].parameters.push_back({.name = "w",
                                      .sizes = {kWhole / 4 / 4},
                                      .dtype = DB_F32,
                                      .in_memory = in_memory,
                                      .whole_numel = whole_numel,
                                      .in_chunks = in_chunks});
  return simulate(log, {{}}).peak;
}

TEST(MeshEstimate, OneWhole_IsInMemoryWhileItIsDivided) {
  // The whole, and its part.
  for (const bool in_memory : {true, false})
    EXPECT_EQ(peak_of_quarter(in_memory, kWhole / 4, /*in_chunks=*/false), kWhole + kWhole / 4);
  EXPECT_LT(peak_of_quarter(/*in_memory=*/true, 0, /*in_chunks=*/false), kWhole);
}

TEST(MeshEstimate, AWholeThatIsDividedWhileItIsDrawn_IsAChunk) {
  constexpr uint64_t kChunk = uint64_t{4} << 20;
  const uint64_t never_divided = peak_of_quarter(/*in_memory=*/false, 0, /*in_chunks=*/false);
  EXPECT_LT(never_divided, kWhole);
  EXPECT_EQ(peak_of_quarter(/*in_memory=*/false, kWhole / 4, /*in_chunks=*/true),
            never_divided + kChunk);
}

TEST(MeshEstimate, ShardGroups_ShareTheModelInsteadOfAllRanks) {
  const StepLog log = log_of(transformer_of(kLlama, "config.json"));
  config::BackendConfig fsdp;
  fsdp.use = "fsdp";
  const auto state = [&](const SharingRanks& ranks) {
    return static_cast<double>(
        estimate_memory(log, fsdp, ranks, {}).of(MemoryCategory::kOptimizer));
  };
  EXPECT_DOUBLE_EQ(state({.averaging = 8, .sharding = 2}), state({.averaging = 2, .sharding = 1}));
  EXPECT_NEAR(state({.averaging = 8, .sharding = 2}), 4 * state({.averaging = 8, .sharding = 1}),
              0.05 * state({.averaging = 8, .sharding = 2}));
}

TEST(MeshEstimate, ShardGroups_NeedABackendThatShards) {
  const StepLog log = log_of(transformer_of(kLlama, "config.json"));
  testing::expect_error(ErrorCode::kConfig,
                        "parallel.shard is 2, but the backend 'auto' shards no model",
                        [&] { estimate_memory(log, {}, {.averaging = 4, .sharding = 2}, {}); });
}

TEST(MeshEstimate, DividedExperts_NeedABackendThatDoesNotShard) {
  const StepLog log = log_of(transformer_of(kLlama, "config.json"));
  const SharingRanks ranks{.averaging = 4, .sharding = 1, .experts = 2};
  EXPECT_GT(estimate_memory(log, {}, ranks, {}).peak, 0u);
  config::BackendConfig fsdp;
  fsdp.use = "fsdp";
  testing::expect_error(ErrorCode::kUnsupported,
                        "parallel.expert is 2, but the backend 'fsdp' shards models itself",
                        [&] { estimate_memory(log, fsdp, ranks, {}); });
}

TEST(MeshEstimate, WhatDoesNotDivide_IsRefusedByName) {
  testing::expect_error(ErrorCode::kConfig,
                        "k_proj.weight' is [32, 64], and the 32 of dimension 0 cannot be divided",
                        [] { divided_decoder(kLlama, 8); });
  testing::expect_error(ErrorCode::kConfig, "matches no module of the model", [] {
    LoggedModel model = transformer_of(kLlama, "config.json");
    divide_layers(model, {{sharding::planned_layers("blocks.*.q = colwise")}}, 2);
  });
}

TEST(MeshEstimate, ModelsWithoutAPlan_HaveNone) {
  const std::string bert = R"({"model_type": "bert", "hidden_size": 64, "intermediate_size": 256,
      "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 512,
      "type_vocab_size": 2})";
  EXPECT_TRUE(plan_of_transformer(bert, "config.json", 2).empty());
}

TEST(MeshEstimate, SharingRanks_AreThoseOfTheMesh) {
  const SharingRanks ranks = sharing_ranks(Mesh({1, 2, 4, 1, 2, 2}, 0));
  EXPECT_EQ(ranks.averaging, 16);
  EXPECT_EQ(ranks.sharding, 4);
  EXPECT_EQ(ranks.experts, 1);
  const SharingRanks experts = sharing_ranks(Mesh({1, 2, 1, 3, 1, 1}, 0));
  EXPECT_EQ(experts.averaging, 6);
  EXPECT_EQ(experts.experts, 3);
}

}  // namespace
}  // namespace coupler::estimate
