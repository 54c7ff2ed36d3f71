// Compares the estimate for a training run with the measured peak memory of one of its processes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "base/text.h"
#include "run_program.h"
#include "words.h"

namespace coupler {
namespace {

struct Configuration {
  std::string name;
  Words overrides;
  int processes = 2;
  Words program = {};  // empty: the GPT
};

Words zero(int stage) {
  return {"backend.use=deepspeed_like", "backend.deepspeed_like.base=gloo_cpu",
          fmt::format("backend.deepspeed_like.stage={}", stage)};
}
Words fsdp(const std::string& strategy) {
  return {"backend.use=fsdp", "backend.fsdp.base=gloo_cpu", "backend.fsdp.strategy=" + strategy};
}
Words on_disk(const std::string& what) {
  const std::string key = "backend.deepspeed_like." + what;
  return {key + ".device=nvme", key + ".nvme_path=disk"};
}
const Words kCheckpointing{"memory.activation_checkpointing=[\"blocks.*\"]"};
const Words kHalf{"training.mixed_precision=bf16"};
const Words kReplicate{"backend.use=gloo_cpu"};
const Words kTensor{"parallel.tensor=2"};
const Words kPipeline{"parallel.pipeline=2"};

void expect_estimate_within_a_tenth(const Configuration& configuration) {
  Workplace here;
  // On two cores that other tests load, a step takes a minute.
  here.limit = std::chrono::minutes(10);
  std::filesystem::create_directory(here.path() / "disk");
  std::string text;
  for (int i = 0; i < 4000; ++i) text += "in the beginning was the word, and the word was number ";
  here.write("text.txt", text);
  Words options;
  for (const std::string& text_of : configuration.overrides) {
    options.insert(options.end(), {"-o", text_of});
  }
  // Two steps: the second backward, with the optimizer's state in memory, reaches the peak.
  Words program{GPT_PROGRAM, "--text",       "text.txt", "--width", "768",
                "--heads",   "12",           "--layers", "12",      "--seq",
                "128",       "--batch-size", "8",        "--steps", "2"};
  if (!configuration.program.empty()) program = configuration.program;
  const std::string processes = fmt::to_string(configuration.processes);
  const Outcome estimate = here.coupler(
      with(with({"estimate", "--json", "--world", processes}, options), with({"--"}, program)));
  ASSERT_EQ(estimate.exit_code, 0) << estimate.err;
  const auto parsed = nlohmann::json::parse(estimate.out);
  const double expected = parsed["estimates"][0]["peak_bytes"].get<double>() / (1 << 20);
  const Outcome run = here.coupler(with(with({"launch", "-n", processes}, options), program));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::smatch peaks;
  ASSERT_TRUE(std::regex_search(run.out, peaks, std::regex("peak ([\\d, ]+) MiB"))) << run.out;
  double seen = 0;
  for (const std::string& peak : split(peaks[1].str(), ',')) seen = std::max(seen, std::stod(peak));
  std::printf("%-40s estimated %6.0f MiB, measured %6.0f MiB: %+.1f %%\n",
              configuration.name.c_str(), expected, seen, 100 * (expected / seen - 1));
  EXPECT_NEAR(expected, seen, 0.1 * seen) << configuration.name << "\n" << estimate.out;
}

TEST(FastEstimateAccuracy, ThreeConfigurations_AreWithinATenth) {
  expect_estimate_within_a_tenth({"replicate", kReplicate});
  expect_estimate_within_a_tenth({"ZeRO 2", zero(2)});
  expect_estimate_within_a_tenth({"fsdp shard_grad_op", fsdp("shard_grad_op")});
}

TEST(FastEstimateAccuracy, DividedLayers_AreWithinATenth) {
  expect_estimate_within_a_tenth({"tensor 2", with(kReplicate, kTensor)});
}

TEST(FullEstimateAccuracy, OtherMeshes_AreWithinATenth) {
  const Words shards = with(kTensor, {"parallel.shard=2"});
  for (const Configuration& configuration : std::vector<Configuration>{
           {"tensor 2 x shard 2, ZeRO 2", with(zero(2), shards), 4},
           {"tensor 2 x shard 2, fsdp full_shard", with(fsdp("full_shard"), shards), 4},
           {"tensor 2, bf16", with(with(kReplicate, kTensor), kHalf)},
           {"tensor 2, overlap", with(with(kReplicate, kTensor), {"parallel.overlap_chunks=4"})},
           {"tensor 2, checkpointing", with(with(kReplicate, kTensor), kCheckpointing)},
           {"context 2", with(kReplicate, {"parallel.context=2"})},
           {"pipeline 2", with(kReplicate, kPipeline)},
           {"pipeline 2, checkpointing", with(with(kReplicate, kPipeline), kCheckpointing)},
           {"pipeline 2 x tensor 2", with(with(kReplicate, kPipeline), kTensor), 4},
       }) {
    expect_estimate_within_a_tenth(configuration);
  }
}

// 75 million parameters; tokens choose experts about as evenly as the estimate assumes.
TEST(FullEstimateAccuracy, DividedExperts_AreWithinATenth) {
  const Words mixture{MIXTURE_PROGRAM, "512", "1024", "8", "6"};
  expect_estimate_within_a_tenth({"mixtures", kReplicate, 2, mixture});
  expect_estimate_within_a_tenth({"expert 2", with(kReplicate, {"parallel.expert=2"}), 2, mixture});
}

TEST(FullEstimateAccuracy, TheOtherTwelve_AreWithinATenth) {
  for (const Configuration& configuration : std::vector<Configuration>{
           {"replicate, bf16", with(kReplicate, kHalf)},
           {"replicate, checkpointing", with(kReplicate, kCheckpointing)},
           {"replicate, int8", with(kReplicate, {"communication.gradients=int8"})},
           {"replicate, powersgd", with(kReplicate, {"communication.gradients=powersgd"})},
           {"fsdp full_shard, int8", with(fsdp("full_shard"), {"communication.gradients=int8"})},
           {"ZeRO 1", zero(1)},
           {"ZeRO 2, bf16", with(zero(2), kHalf)},
           {"ZeRO 3", zero(3)},
           {"fsdp full_shard", fsdp("full_shard")},
           {"fsdp full_shard, checkpointing", with(fsdp("full_shard"), kCheckpointing)},
           {"ZeRO 3, optimizer on disk", with(zero(3), on_disk("offload_optimizer"))},
           {"ZeRO 3, all on disk",
            with(with(zero(3), on_disk("offload_optimizer")), on_disk("offload_param"))},
       }) {
    expect_estimate_within_a_tenth(configuration);
  }
}

}  // namespace
}  // namespace coupler
