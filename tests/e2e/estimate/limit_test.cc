// [memory] limit: checked in prepare and enforced while training; checkpoints stay complete.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "run_program.h"
#include "words.h"

namespace coupler {
namespace {

Words launch_limited(const Workplace& here, const Words& options, const Words& more) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "in the beginning was the word, and the word was number ";
  here.write("text.txt", text);
  Words words{"launch", "-n", "2", "-o", "backend.use=gloo_cpu"};
  words = with(words, options);
  return with(with(words, {GPT_PROGRAM, "--text", "text.txt", "--heads", "4", "--layers", "4",
                           "--width", "512", "--log-every", "1"}),
              more);
}

bool says(const Outcome& outcome, const std::string& text) {
  return (outcome.out + outcome.err).find(text) != std::string::npos;
}

TEST(MemoryLimit, RoomEnough_TrainsAsEver) {
  const Workplace here;
  const Outcome outcome = here.coupler(launch_limited(
      here, {"-o", "memory.limit=4GiB"}, {"--batch-size", "1", "--seq", "16", "--steps", "4"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

// The MiB of the process itself, as a refusal says them. From system to system they differ by half,
// since as much of LibTorch's code counts as the page cache has in one piece.
int mib_of_process(const Outcome& refusal) {
  const std::string before = "the process itself ";
  const size_t at = refusal.err.find(before);
  return at == std::string::npos ? 0 : std::stoi(refusal.err.substr(at + before.size()));
}

TEST(MemoryLimit, PlanThatNeedsMore_IsRefusedWithWhatWouldFit) {
  const Workplace here;
  const auto limited = [&](int mib) {
    return here.coupler(launch_limited(here, {"-o", "memory.limit=" + std::to_string(mib) + "MiB"},
                                       {"--batch-size", "1", "--seq", "16", "--steps", "4"}));
  };
  // 12.8 million parameters: 147 MiB with their gradients, and 98 of optimizer state.
  const int limit = mib_of_process(limited(256)) + 152;
  const Outcome outcome = limited(limit);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  const std::vector<std::string> texts{
      "a rank needs at least ",
      ", but memory.limit is " + std::to_string(limit) + ".0 MiB: parameters ",
      "gradients ",
      "optimizer state ",
      "the process itself ",
      "activations are not counted",
      "these settings would fit, fastest first: backend.use = \"deepspeed_like\""};
  for (const std::string& text : texts) {
    EXPECT_TRUE(says(outcome, text)) << text << " in\n" << outcome.err;
  }
}

TEST(MemoryLimit, BelowTheLargestUnit_NamesIt) {
  const Workplace here;
  const Outcome outcome = here.coupler(launch_limited(
      here, {"-o", "memory.limit=16MiB"}, {"--batch-size", "1", "--seq", "16", "--steps", "4"}));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_TRUE(says(outcome, "memory.limit is 16.0 MiB, but the unit 'blocks.")) << outcome.err;
  EXPECT_TRUE(says(outcome, "raise the limit, or split that module into smaller ones"));
}

TEST(MemoryLimit, ActivationsThatPassIt_EndInAnErrorAndTheCheckpointStays) {
  const Workplace here;
  const Words keep{"-o", "checkpoint.dir=saved", "-o", "checkpoint.every=2"};
  const Words little{"--batch-size", "1", "--seq", "16", "--steps", "4"};
  ASSERT_EQ(here.coupler(launch_limited(here, keep, little)).exit_code, 0);
  const Outcome outcome =
      here.coupler(launch_limited(here, with(keep, {"-o", "memory.limit=480MiB"}),
                                  {"--batch-size", "256", "--seq", "16", "--steps", "9"}));
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  for (const char* text :
       {"more for a tensor would exceed memory.limit, 480.0 MiB: tensors hold ",
        ", gathered units and buffers ", ", and the process itself ", "coupler config recommend"}) {
    EXPECT_TRUE(says(outcome, text)) << text << " in\n" << outcome.err;
  }
  EXPECT_EQ(here.coupler({"checkpoint", "verify", "saved"}).exit_code, 0);
}

}  // namespace
}  // namespace coupler
