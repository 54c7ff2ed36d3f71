// Estimates of pipelines and recommendations that make them. Each stage takes a dry run, so tests
// with more of these are in the full suite.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "run_program.h"
#include "words.h"

namespace coupler {
namespace {

// features, rows of a micro-batch, micro-batches
Words chain(const Words& sizes) { return with({"--", CHAIN_PROGRAM}, sizes); }

// Of two stages, each of an embedding or a linear layer and one more linear layer. Every layer has
// 4 MiB of weights and gives each micro-batch activations of 32 MiB.
TEST(FastPipelineEstimates, Stages_HoldTheMicroBatchesThatTheScheduleKeepsInFlight) {
  const Workplace here;
  constexpr double kMiB = 1 << 20, kLayer = 4 * kMiB, kActivation = 32 * kMiB;
  const auto estimate = [&](const std::string& micro_batches) {
    const Outcome outcome = here.coupler(with({"estimate", "--json", "--world", "2", "-o",
                                               "backend.use=gloo_cpu", "-o", "parallel.pipeline=2"},
                                              chain({"1024", "8192", micro_batches})));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out)["estimates"][0];
  };
  const auto one = estimate("1"), four = estimate("4");
  EXPECT_EQ(four["mesh"]["pipeline"], 2);
  EXPECT_EQ(four["parameters"]["all"], 4 << 20);
  EXPECT_EQ(four["parameters"]["after_division"], 2 << 20);
  EXPECT_NEAR(four["most_bytes"]["gradients"].get<double>(), 2 * kLayer, 0.01 * kLayer);
  EXPECT_NEAR(four["most_bytes"]["optimizer"].get<double>(), 4 * kLayer, 0.01 * kLayer);
  EXPECT_EQ(four["pipeline"]["micro_batches"], 4);
  EXPECT_EQ(four["pipeline"]["idle_percent"], 20);  // 1 of 5
  const auto stages = four["pipeline"]["stage_peak_bytes"].get<std::vector<double>>();
  const auto alone = one["pipeline"]["stage_peak_bytes"].get<std::vector<double>>();
  ASSERT_EQ(stages.size(), 2u);
  ASSERT_EQ(alone.size(), 2u);
  EXPECT_EQ(four["peak_bytes"].get<double>(), std::max(stages[0], stages[1]));
  // With four micro-batches, the first stage holds one more, of two layers, and memory for the next
  // gradients; the last one memory for the next activations, and gradients that it has sent. A
  // twentieth comes on top.
  EXPECT_NEAR(stages[0] - alone[0], 3 * kActivation * 1.05, 16 * kMiB);
  EXPECT_NEAR(stages[1] - alone[1], 2 * kActivation * 1.05, 16 * kMiB);
}

TEST(FastPipelineEstimates, ModelConfiguration_IsCutIntoStages) {
  const Workplace here;
  here.write("config.json",
             R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_positions": 1024,
                 "vocab_size": 50257, "n_head": 12})");
  const Outcome outcome = here.coupler(
      {"estimate", "--world", "2", "--json", "-o", "parallel.pipeline=2", "config.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto row = nlohmann::json::parse(outcome.out)["estimates"].at(0);
  // The embeddings with six blocks, six blocks with the last norm and the tied head.
  constexpr uint64_t kWords = 50257 * 768, kPlaces = 1024 * 768, kBlock = 7087872;
  constexpr uint64_t kKept = kWords + kPlaces + 6 * kBlock;
  EXPECT_EQ(row["pipeline"]["stage"], 0);
  EXPECT_EQ(row["parameters"]["after_division"], kKept);
  EXPECT_EQ(row["parameters"]["all"], kWords + kPlaces + 12 * kBlock + 2 * 768);
  EXPECT_EQ(row["most_bytes"]["gradients"], 4 * kKept);
  EXPECT_EQ(row["pipeline"]["stage_peak_bytes"].size(), 2u);
  const Outcome divided = here.coupler({"estimate", "--world", "4", "-o", "parallel.pipeline=2",
                                        "-o", "parallel.tensor=2", "config.json"});
  ASSERT_EQ(divided.exit_code, 0) << divided.err;
  for (const char* text : {"0, as above  ", "pipeline   2      the chain of layers: ",
                           "tensor     2      each of these layers"}) {
    EXPECT_NE(divided.out.find(text), std::string::npos) << text << " in\n" << divided.out;
  }
}

TEST(FullPipelineEstimates, Stages_AreListedWithWhatTheirPipelineWaits) {
  const Workplace here;
  const Outcome outcome = here.coupler(
      with({"estimate", "--world", "4", "-o", "backend.use=auto", "-o", "parallel.pipeline=2"},
           chain({"64", "8", "2"})));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* text :
       {"A pipeline of 2 stages, with 2 micro-batches: ranks wait 33 % of the time", "\nstage ",
        ", as above", "pipeline   2      the chain of layers: 8192 of 16384 elements",
        "data       2      samples"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << " in\n" << outcome.out;
  }
}

TEST(FullPipelineEstimates, PipelinesThatCannotBe_EndWithTheProgramsMessage) {
  const Workplace here;
  const auto estimate = [&](const Words& options) {
    return here.coupler(with(with({"estimate", "--world", "8"}, options), chain({"64", "8", "8"})));
  };
  const Outcome layers = estimate({"-o", "parallel.pipeline=8"});
  EXPECT_NE(layers.exit_code, 0);
  expect_in(layers.err, "the model has 4 layers, too few for 8 processes");
  const Outcome sharded = estimate({"-o", "backend.use=fsdp", "-o", "parallel.pipeline=2"});
  EXPECT_NE(sharded.exit_code, 0);
  expect_in(sharded.err, "the backend 'fsdp' shards a model's parameters itself");
}

TEST(FullPipelineEstimates, Recommend_MakesAPipelineIfNothingElseFits) {
  const Workplace here;
  // 64 MiB of weights, which nothing divides but a pipeline.
  const Words program = chain({"2048", "16", "4"});
  const Outcome pipeline = here.coupler(with(
      {"estimate", "--json", "--world", "2", "-o", "backend.use=auto", "-o", "parallel.pipeline=2"},
      program));
  ASSERT_EQ(pipeline.exit_code, 0) << pipeline.err;
  const auto peak =
      nlohmann::json::parse(pipeline.out)["estimates"][0]["peak_bytes"].get<uint64_t>();
  const Outcome tight = here.coupler(with(
      {"config", "recommend", "--world", "2", "--limit", std::to_string(peak / 20 * 21)}, program));
  ASSERT_EQ(tight.exit_code, 0) << tight.err;
  for (const char* text :
       {"# Chosen: pipeline 2, since no mesh that costs less time fits.",
        "# Its ranks wait 20 % of the time while the pipeline fills and drains: it has 4",
        "# Rejected: data 2, of which a rank needs ", "# Rejected: tensor 2: parallel.tensor is 2",
        "\n[parallel]\npipeline = 2\ndata = 1\n"}) {
    EXPECT_NE(tight.out.find(text), std::string::npos) << text << " in\n" << tight.out;
  }
  here.write("train.toml", tight.out);
  EXPECT_EQ(here.coupler({"config", "check"}).exit_code, 0);
}

// The program makes a pipeline of all ranks unless [parallel] says otherwise; 4 layers are too few.
TEST(FullPipelineEstimates, Recommend_GoesOnWithoutPipelinesThatCannotBe) {
  const Workplace here;
  const Outcome outcome = here.coupler(
      with({"config", "recommend", "--world", "5", "--limit", "1MiB"}, chain({"64", "8", "5"})));
  EXPECT_EQ(outcome.exit_code, 2);
  expect_in(outcome.err,
            "no setting fits within 1.0 MiB per rank with 5 processes: the smallest, ");
  expect_in(outcome.err, "pipeline 5 is not possible: the model has 4 layers, too few for 5");
}

}  // namespace
}  // namespace coupler
