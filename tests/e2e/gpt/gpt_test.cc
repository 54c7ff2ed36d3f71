// The GPT example: its loss falls on two ranks over every transport, and wrong sizes give an error.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "run_program.h"

namespace coupler {
namespace {

std::string some_text() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "in the beginning was the word, and the word was number ";
  return text;
}

// backend: a transport, or a sharding plugin and its base: "fsdp/mpi".
Outcome run_gpt(const Workplace& here, const std::string& backend,
                const std::vector<std::string>& more, const std::string& text = "text.txt",
                const std::map<std::string, std::string>& variables = {}) {
  here.write("text.txt", some_text());
  const size_t slash = backend.find('/');
  const std::string use = backend.substr(0, slash);
  const std::string base = slash == std::string::npos
                               ? "backend.timeout=30s"
                               : "backend." + use + ".base=" + backend.substr(slash + 1);
  std::vector<std::string> arguments{
      "launch", "-n",      "2",         "-o",          "backend.use=" + use,
      "-o",     base,      GPT_PROGRAM, "--text",      text,
      "--seq",  "16",      "--layers",  "1",           "--heads",
      "2",      "--steps", "60",        "--log-every", "20",
      "--lr",   "0.01"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return here.coupler(arguments, variables);
}

std::vector<double> losses_of_gpt(const Outcome& outcome) {
  std::vector<double> losses;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find("  loss ");
    if (line.rfind("step ", 0) == 0 && at != std::string::npos) {
      losses.push_back(std::strtod(line.c_str() + at + 7, nullptr));
    }
  }
  return losses;
}

class GptOver : public ::testing::TestWithParam<const char*> {};

TEST_P(GptOver, TwoRanks_LossFallsAndSpeedIsPrinted) {
  const Workplace here;
  const Outcome outcome = run_gpt(here, GetParam(), {"--width", "16"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<double> losses = losses_of_gpt(outcome);
  ASSERT_EQ(losses.size(), 3U) << outcome.out;
  EXPECT_LT(losses[2], 0.8 * losses[0]) << outcome.out;
  EXPECT_NE(outcome.out.find("tokens per second: "), std::string::npos) << outcome.out;
  EXPECT_TRUE(std::regex_search(outcome.out,
                                std::regex("\nmemory per rank: peak [1-9]\\d*, [1-9]\\d* MiB\n")))
      << outcome.out;
}

std::string gpt_name_of(const ::testing::TestParamInfo<const char*>& instance) {
  std::string name = instance.param;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Transports, GptOver, ::testing::Values("gloo_cpu", "mpi"), gpt_name_of);
INSTANTIATE_TEST_SUITE_P(Sharding, GptOver,
                         ::testing::Values("fsdp/mpi", "deepspeed_like/gloo_cpu"), gpt_name_of);
INSTANTIATE_TEST_SUITE_P(Full, GptOver, ::testing::Values("fsdp/gloo_cpu", "deepspeed_like/mpi"),
                         gpt_name_of);

TEST(Gpt, TwoStages_TrainAndAreNotEvaluated) {
  const Workplace here;
  here.write("train.toml", "[parallel]\npipeline = 2\n");
  const Outcome outcome = run_gpt(here, "gloo_cpu", {"--width", "16"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<double> losses = losses_of_gpt(outcome);
  ASSERT_EQ(losses.size(), 3U) << outcome.out;
  EXPECT_LT(losses[2], 0.8 * losses[0]) << outcome.out;
  const Outcome evaluated = run_gpt(here, "gloo_cpu", {"--width", "16", "--evaluate", "text.txt"});
  EXPECT_EQ(evaluated.exit_code, 2);
  expect_in(evaluated.err, "needs whole layers on one process");
}

// Both have the samples of one process, so that their losses are the same.
TEST(Gpt, DividedLayersAndDividedSequences_TrainAlike) {
  const Workplace here;
  const auto train = [&](const std::string& dimension) {
    here.write("train.toml", "[parallel]\n" + dimension + " = 2\n");
    const Outcome outcome = run_gpt(here, "gloo_cpu", {"--width", "16"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return losses_of_gpt(outcome);
  };
  const std::vector<double> layers = train("tensor"), sequences = train("context");
  ASSERT_EQ(layers.size(), 3U);
  ASSERT_EQ(sequences.size(), 3U);
  EXPECT_LT(layers[2], 0.8 * layers[0]);
  EXPECT_NEAR(layers[0], sequences[0], 0.01);
}

class GptInMemoryOfPeers : public ::testing::TestWithParam<const char*> {};

// Gradients and shards that ranks reach, or copies of which they send: the same bits of weights and
// optimizer state after 60 steps.
TEST_P(GptInMemoryOfPeers, EndsInTheSameBits) {
  const Workplace here;
  // The tensors' bytes in each file of the checkpoint.
  const auto train = [&](const std::string& folder, const std::string& uses) {
    const Outcome outcome =
        run_gpt(here, GetParam(),
                {"--width", "64", "-o", "checkpoint.dir=" + folder, "-o", "checkpoint.every=60",
                 "-o", "backend.shm.peer_memory=" + uses},
                "text.txt", {{"COUPLER_LOG", "comm=debug"}});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(has(outcome.err, " bytes are in memory that peers reach"), uses == "true")
        << outcome.err;
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(here.path() / folder)) {
      const std::string name = entry.path().filename();
      if (!has(name, ".safetensors") || !(has(name, "model") || has(name, "optimizer"))) continue;
      const std::string text = text_of(entry.path());
      uint64_t header = 0;  // its length; it names the save
      std::memcpy(&header, text.data(), std::min(sizeof header, text.size()));
      files[name] = text.substr(std::min(text.size(), sizeof header + header));
    }
    return files;
  };
  const auto with = train("with", "true"), without = train("without", "false");
  EXPECT_GE(with.size(), 2u) << "a model's and an optimizer's";
  EXPECT_TRUE(with == without);
}

INSTANTIATE_TEST_SUITE_P(Transports, GptInMemoryOfPeers, ::testing::Values("shm"), gpt_name_of);
INSTANTIATE_TEST_SUITE_P(Sharding, GptInMemoryOfPeers,
                         ::testing::Values("fsdp/shm", "deepspeed_like/shm"), gpt_name_of);

TEST(Gpt, WidthThatHeadsDoNotDivide_IsAUsageErrorNamingBoth) {
  const Workplace here;
  const Outcome outcome = run_gpt(here, "gloo_cpu", {"--width", "15"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("15 is not a multiple of --heads 2"), std::string::npos)
      << outcome.err;
}

TEST(Gpt, MissingText_IsNamed) {
  const Workplace here;
  const Outcome outcome = run_gpt(here, "gloo_cpu", {"--width", "16"}, "nowhere/text.txt");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("nowhere/text.txt"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace coupler
