// Estimates of the stages of a pipeline: which layers a stage keeps, and what it holds of those of
// its micro-batches.
#include <coupler/distributed_backend.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "estimate/cut_model.h"
#include "estimate/settings.h"
#include "estimate/transformer.h"
#include "refusal.h"

namespace coupler::estimate {
namespace {

using Kind = StepEvent::Kind;
constexpr uint64_t kUnit = uint64_t{64} << 20;  // bytes: mapped, so that none is free in a heap

// Parameters of so many units.
LoggedModel model_of(const std::vector<uint64_t>& units) {
  std::vector<LoggedParameter> parameters;
  for (size_t i = 0; i < units.size(); ++i) {
    parameters.push_back({.name = "layers." + std::to_string(i) + ".weight",
                          .sizes = {units[i] * kUnit / 4},
                          .dtype = DB_F32});
  }
  return model_of_parameters("Net", std::move(parameters));
}

// In units: what a stage keeps of each parameter.
std::vector<uint64_t> kept_by(const LoggedModel& stage) {
  std::vector<uint64_t> result;
  for (const LoggedParameter& p : stage.parameters) result.push_back(p.bytes() / kUnit);
  return result;
}

TEST(PipelineEstimate, Cut_MakesTheLargestStageSmall) {
  using Units = std::vector<uint64_t>;
  const LayerChain chain = {{0}, {1}, {2}, {3}};
  const auto stages = cut_model(model_of({4, 1, 1, 2}), chain, 2);
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(kept_by(stages[0]), (Units{4, 0, 0, 0}));
  EXPECT_EQ(kept_by(stages[1]), (Units{0, 1, 1, 2}));
  EXPECT_EQ(stages[1].parameters[0].whole_bytes(), 4 * kUnit);
  EXPECT_EQ(stages[1].parameters[1].whole_bytes(), kUnit);
  testing::expect_error(ErrorCode::kInvalidArgument, "the model has 4 layers, too few for 5", [&] {
    cut_model(model_of({4, 1, 1, 2}), chain, 5);
  });
}

TEST(PipelineEstimate, TiedParameter_IsOnTheStagesOfItsLayers) {
  using Units = std::vector<uint64_t>;
  const auto stages = cut_model(model_of({4, 3, 3, 3}), {{0}, {1}, {2}, {3, 0}}, 3);
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(kept_by(stages[0]), (Units{4, 0, 0, 0}));
  EXPECT_EQ(kept_by(stages[1]), (Units{0, 3, 3, 0}));
  EXPECT_EQ(kept_by(stages[2]), (Units{4, 0, 0, 3}));
}

std::vector<std::vector<std::string>> chain_names(const std::string& config) {
  const LoggedModel model = transformer_of(config, "config.json");
  std::vector<std::vector<std::string>> result;
  for (const std::vector<size_t>& layer : chain_of_transformer(config, "config.json")) {
    result.emplace_back();
    for (const size_t p : layer) result.back().push_back(model.parameters[p].name);
  }
  return result;
}

TEST(PipelineEstimate, ChainOfATiedDecoder_EndsWithItsEmbedding) {
  const auto chain = chain_names(R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 3,
      "n_positions": 32, "vocab_size": 100, "n_head": 4})");
  using Names = std::vector<std::string>;
  ASSERT_EQ(chain.size(), 5u);
  EXPECT_EQ(chain[0], (Names{"transformer.wte.weight", "transformer.wpe.weight"}));
  for (size_t layer = 1; layer < 4; ++layer) {
    EXPECT_EQ(chain[layer].size(), 12u);
    for (const std::string& name : chain[layer])
      EXPECT_EQ(name.rfind("transformer.h." + std::to_string(layer - 1) + ".", 0), 0u) << name;
  }
  EXPECT_EQ(chain[4],
            (Names{"transformer.wte.weight", "transformer.ln_f.weight", "transformer.ln_f.bias"}));
}

TEST(PipelineEstimate, ChainOfProjectedEmbeddings_ProjectsAtBothEnds) {
  const auto chain = chain_names(R"({"model_type": "opt", "hidden_size": 64, "ffn_dim": 128,
      "word_embed_proj_dim": 32, "vocab_size": 100, "max_position_embeddings": 16,
      "num_hidden_layers": 2, "num_attention_heads": 4, "tie_word_embeddings": false})");
  using Names = std::vector<std::string>;
  ASSERT_EQ(chain.size(), 4u);
  EXPECT_EQ(chain[0],
            (Names{"model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight",
                   "model.decoder.project_in.weight"}));
  EXPECT_EQ(chain[3],
            (Names{"model.decoder.project_out.weight", "model.decoder.final_layer_norm.weight",
                   "model.decoder.final_layer_norm.bias", "lm_head.weight"}));
}

TEST(PipelineEstimate, ModelsThatAreNoDecoders_HaveNoChain) {
  const std::string bert = R"({"model_type": "bert", "hidden_size": 64, "intermediate_size": 256,
      "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 512,
      "type_vocab_size": 2})";
  EXPECT_TRUE(chain_names(bert).empty());
}

// The second of two stages keeps the parameter b. Two micro-batches are in flight, each with
// activations of three units, and b's gradient of one unit is added to the first one's.
StepLog log_of_a_stage() {
  StepLog log{.mixed_precision = "no", .models = {}, .optimizer_factor = 2};
  LoggedModel model = model_of({1, 1});
  model.parameters[0].leave_to_others();
  log.models.push_back(std::move(model));
  log.pipeline = {.stages = 2, .stage = 1, .micro_batches = 2};
  log.events = {
      {.kind = Kind::kBackwardBegan, .bytes = 1},
      {.kind = Kind::kMade, .storage = 1, .bytes = 3 * kUnit},
      {.kind = Kind::kMade, .storage = 2, .bytes = 3 * kUnit},
      {.kind = Kind::kMade, .storage = 3, .bytes = kUnit},
      {.kind = Kind::kGradient, .index = 1, .storage = 3, .bytes = 1},
      {.kind = Kind::kGone, .storage = 1},
      {.kind = Kind::kMade, .storage = 4, .bytes = kUnit},
      {.kind = Kind::kGradient, .index = 1, .storage = 3, .bytes = 1},
      {.kind = Kind::kGone, .storage = 4},
      {.kind = Kind::kGone, .storage = 2},
      {.kind = Kind::kBackwardEnded, .bytes = 1},
      {.kind = Kind::kStepped},
      {.kind = Kind::kGone, .storage = 3},
  };
  return log;
}

TEST(PipelineEstimate, Stage_HoldsItsParametersAndTheMicroBatchesInFlight) {
  const MemoryEstimate one = estimate_memory(log_of_a_stage(), {}, {}, {});
  EXPECT_EQ(one.of(MemoryCategory::kGradients), kUnit);
  EXPECT_EQ(one.of(MemoryCategory::kOptimizer), 2 * kUnit);
  // Both micro-batches', and the gradient until it is the parameter's.
  EXPECT_EQ(one.of(MemoryCategory::kActivations), 7 * kUnit);
  EXPECT_EQ(one.when, "backward");
  // Parameter 1, state 2, activations 6, gradient 1; and a twentieth for threads that communicate.
  EXPECT_EQ(one.peak, 10 * kUnit + 10 * kUnit / 20);
}

// Without a program there is no step in which gradients come.
TEST(PipelineEstimate, StageOfAModel_HasGradientsAndState) {
  StepLog log{.mixed_precision = "no", .models = {}, .optimizer_factor = 2};
  log.models.push_back(cut_model(model_of({1, 2}), {{0}, {1}}, 2).at(1));
  log.pipeline = {.stages = 2, .stage = 1};
  const MemoryEstimate estimate = estimate_memory(log, {}, {}, {});
  EXPECT_EQ(estimate.of(MemoryCategory::kGradients), 2 * kUnit);
  EXPECT_EQ(estimate.of(MemoryCategory::kOptimizer), 4 * kUnit);
  EXPECT_EQ(estimate.peak, 8 * kUnit);
}

TEST(PipelineEstimate, SeveralPipelines_LeaveGradientsWhereTheyAre) {
  const StepLog log = log_of_a_stage();
  EXPECT_EQ(estimate_memory(log, {}, {.averaging = 4, .sharding = 1}, {}).peak,
            estimate_memory(log, {}, {}, {}).peak);
}

TEST(PipelineEstimate, WhatAPipelineRefuses_IsNotEstimated) {
  const StepLog log = log_of_a_stage();
  config::BackendConfig fsdp;
  fsdp.use = "fsdp";
  testing::expect_error(ErrorCode::kUnsupported,
                        "the backend 'fsdp' shards a model's parameters itself",
                        [&] { estimate_memory(log, fsdp, {.averaging = 2, .sharding = 1}, {}); });
  config::MemoryConfig memory;
  memory.offload_optimizer_device = "cpu";
  testing::expect_error(ErrorCode::kUnsupported, "memory.offload_optimizer_device is set",
                        [&] { estimate_memory(log, {}, {}, {}, memory); });
}

}  // namespace
}  // namespace coupler::estimate
