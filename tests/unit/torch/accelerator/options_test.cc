// AcceleratorOptions: what the Accelerator does with its fields.
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <coupler/processes.h>
#include <gtest/gtest.h>

namespace coupler {
namespace {

AcceleratorOptions many_fields() {
  return {.backend = "auto",
          .timeout = std::chrono::milliseconds(1500),
          .device = "cpu",
          .gradient_accumulation_steps = 3,
          .sync_each_batch = true,
          .sync_with_dataloader = false,
          .optimizer_in_backward = true,
          .broadcast_buffers = false,
          .bucket_cap_mb = 7.0,
          .seed = 11,
          .mixed_precision = "bf16",
          .loss_scale_init_scale = 8.0,
          .loss_scale_growth_factor = 3.0,
          .loss_scale_backoff_factor = 0.25,
          .loss_scale_growth_interval = 5,
          .fp8_format = "e4m3",
          .fp8_emulate = true,
          .log_with = std::vector<std::string>{"csv", "jsonl"},
          .project_dir = "a",
          .logging_dir = "b",
          .gradients = "bf16",
          .int8_block = 64,
          .powersgd_rank = 2,
          .powersgd_start_step = 3,
          .powersgd_warm_start = false,
          .powersgd_error_feedback = false,
          .powersgd_min_compression_rate = 3.0,
          .powersgd_orthogonalization_epsilon = 1e-8,
          .powersgd_dtype = "bf16",
          .local_sgd_steps = 0,
          .local_sgd_momentum = 0.5};
}

TEST(AcceleratorOptions, FieldsAreUsed_AndLaterOnesByKeyWin) {
  AcceleratorOptions options = many_fields();
  options.set("training.gradient_accumulation_steps", int64_t{4});
  const Accelerator accelerator(options);
  EXPECT_EQ(accelerator.gradient_accumulation_steps(), 4);
  EXPECT_EQ(accelerator.mixed_precision(), "bf16");
  EXPECT_EQ(AcceleratorState().mixed_precision(), "bf16");
}

TEST(AcceleratorOptions, CommandLineWins) {
  std::string words[] = {"program", "-o", "training.gradient_accumulation_steps=6", "rest"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int count = 4;
  const Accelerator accelerator(count, arguments.data(), {.gradient_accumulation_steps = 2});
  EXPECT_EQ(accelerator.gradient_accumulation_steps(), 6);
  EXPECT_EQ(count, 2);
}

TEST(AcceleratorOptions, WrongValue_NamesTheKeyAndItsRule) {
  try {
    const Accelerator accelerator({.gradient_accumulation_steps = 0});
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("AcceleratorOptions"), std::string::npos) << text;
    EXPECT_NE(text.find("training.gradient_accumulation_steps"), std::string::npos) << text;
    EXPECT_NE(text.find(">= 1"), std::string::npos) << text;
  }
}

TEST(AcceleratorOptions, ThatContradictEachOther_AreRefusedAtTheStart) {
  for (const AcceleratorOptions& options :
       {AcceleratorOptions{.optimizer_in_backward = true, .mixed_precision = "fp16"},
        AcceleratorOptions{.gradients = "bf16", .local_sgd_steps = 4}}) {
    try {
      const Accelerator accelerator(options);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      const std::string text = error.what();
      EXPECT_TRUE(text.starts_with(error.detail().subject + " is ")) << text;
    }
  }
}

}  // namespace
}  // namespace coupler
