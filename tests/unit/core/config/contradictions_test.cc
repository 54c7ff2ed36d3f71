// Keys that contradict each other.
#include <gtest/gtest.h>

#include <string>

#include "config/validate.h"

namespace coupler::config {
namespace {

void expect_one(const std::vector<Error>& found, const std::string& key, const std::string& words) {
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].code(), ErrorCode::kConfig);
  EXPECT_EQ(found[0].detail().subject, key);
  EXPECT_FALSE(found[0].detail().hint.empty());
  const std::string text = found[0].what();
  EXPECT_TRUE(text.starts_with(key + " is ")) << text;
  EXPECT_NE(text.find(words), std::string::npos) << text;
}

TEST(Contradictions, Defaults_HaveNone) {
  const Config config;
  EXPECT_TRUE(conflicts_in(config).empty());
  EXPECT_TRUE(sharding_conflicts("fsdp", config.memory, config.communication).empty());
  throw_first({});
}

TEST(Contradictions, LocalSgd_SendsNoGradients) {
  Config config;
  config.communication.local_sgd_steps = 4;
  EXPECT_TRUE(conflicts_in(config).empty());
  config.communication.gradients = "bf16";
  expect_one(
      conflicts_in(config), "communication.gradients",
      "\"bf16\", but with LocalSGD (communication.local_sgd_steps = 4) no gradients are sent");
}

TEST(Contradictions, ASequenceWithoutRanksToDivideIt) {
  Config config;
  config.parallel.sequence = true;
  expect_one(conflicts_in(config), "parallel.sequence", "true, but parallel.tensor is 1");
  config.parallel.tensor = MeshSize{2};
  EXPECT_TRUE(conflicts_in(config).empty());
}

TEST(Contradictions, OverlapWithoutDividedLayers) {
  Config config;
  config.parallel.overlap_chunks = 4;
  expect_one(conflicts_in(config), "parallel.overlap_chunks", "4, but parallel.tensor is 1");
  config.parallel.tensor = MeshSize{2};
  EXPECT_TRUE(conflicts_in(config).empty());
}

TEST(Contradictions, DiskWithoutAFolder) {
  Config config;
  config.memory.offload_optimizer_device = "nvme";
  expect_one(conflicts_in(config), "memory.offload_optimizer_device",
             "set memory.offload_optimizer_nvme_path");
  config.memory.offload_optimizer_nvme_path = "/scratch";
  EXPECT_TRUE(conflicts_in(config).empty());
}

TEST(Contradictions, OptimizerInBackward_CannotWaitForFp16) {
  Config config;
  config.training.optimizer_in_backward = true;
  config.training.mixed_precision = "bf16";
  EXPECT_TRUE(conflicts_in(config).empty());
  config.training.mixed_precision = "fp16";
  expect_one(conflicts_in(config), "training.optimizer_in_backward",
             "with fp16 an overflow is known only after all gradients exist");
}

TEST(Contradictions, WithDivision_WhatNeedsWholeModelsIsRefused) {
  expect_one(sharding_conflicts("fsdp", {.offload_optimizer_device = "cpu"}, {}),
             "memory.offload_optimizer_device", "the options for offloading of [backend.fsdp]");
  expect_one(sharding_conflicts("fsdp", {}, {.local_sgd_steps = 2}),
             "communication.local_sgd_steps", "no rank has all parameters to train on its own");
  expect_one(sharding_conflicts("fsdp", {}, {.gradients = "powersgd"}), "communication.gradients",
             "PowerSGD needs whole matrices on every rank");
  EXPECT_TRUE(sharding_conflicts("fsdp", {}, {.gradients = "int8"}).empty());
}

TEST(Contradictions, TheFirstIsThrown) {
  Config config;
  config.communication = {.gradients = "int8", .local_sgd_steps = 2};
  config.memory.offload_optimizer_device = "nvme";
  const std::vector<Error> both = conflicts_in(config);
  ASSERT_EQ(both.size(), 2u);
  try {
    throw_first(both);
    FAIL() << "no exception was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), both[0].what());
  }
}

}  // namespace
}  // namespace coupler::config
