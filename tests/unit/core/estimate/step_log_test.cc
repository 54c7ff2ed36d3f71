#include "estimate/step_log.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <string>

namespace coupler::estimate {
namespace {

TEST(StepLog, WrittenAndRead_IsTheSame) {
  StepLog log{.mixed_precision = "bf16",
              .activation_checkpointing = {"blocks.*"},
              .buffer_bytes = 3,
              .base_bytes = 5,
              .optimizer = "fused AdamW",
              .optimizer_fused = false,
              .optimizer_factor = 2,
              .experts = 4,
              .initial = 1,
              .pipeline = {.stages = 4, .stage = 2, .micro_batches = 8, .virtual_stages = 2}};
  log.models.push_back({.name = "Net",
                        .modules = {{"", "Net", -1}, {"a", "Linear", 0}},
                        .parameters = {{.name = "a.weight",
                                        .module = 1,
                                        .sizes = {4, 3},
                                        .in_memory = false,
                                        .whole_numel = 24,
                                        .in_chunks = true}}});
  log.events.push_back({.kind = StepEvent::Kind::kGradient, .index = 0, .storage = 9, .bytes = 1});
  const std::string text = write_step_log(log);
  const StepLog again = read_step_log(text);
  EXPECT_EQ(write_step_log(again), text);
  EXPECT_EQ(again.models[0].parameters[0].numel(), 12u);
  EXPECT_EQ(again.models[0].parameters[0].whole_numel, 24u);
  EXPECT_FALSE(again.models[0].parameters[0].in_memory);
  EXPECT_TRUE(again.models[0].parameters[0].in_chunks);
  EXPECT_EQ(again.trainable_bytes(), 48u);
  EXPECT_EQ(again.experts, 4u);
  EXPECT_EQ(again.pipeline.stages, 4);
  EXPECT_EQ(again.pipeline.stage, 2);
  EXPECT_EQ(again.pipeline.micro_batches, 8);
  EXPECT_EQ(again.pipeline.virtual_stages, 2);
  EXPECT_EQ(again.events[0].kind, StepEvent::Kind::kGradient);
}

TEST(StepLog, AnotherText_IsRefused) {
  for (const std::string text : {"", "{}", "[]", R"({"version": 1})"}) {
    try {
      read_step_log(text);
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the report of a dry run cannot be read"),
                std::string::npos);
    }
  }
}

}  // namespace
}  // namespace coupler::estimate
