// coupler config check: a configuration as every rank of its job sees it.
#include <gtest/gtest.h>

#include "run_program.h"

namespace coupler {
namespace {

TEST(ConfigRanks, OfARightConfiguration_AreSaidToBeRight) {
  const Workplace here;
  here.write("train.toml",
             "[backend]\nuse = \"fsdp\"\n[backend.fsdp]\nbase = \"gloo_cpu\"\n"
             "[checkpoint]\ndir = \"runs/first\"\n[launch]\nprocesses = 3\n");
  const Outcome outcome = here.coupler({"config", "check"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* words : {": 3 of 3 processes\n", "backend: fsdp 0.1.0 over gloo_cpu 0.1.0\n",
                            "valid on every rank; ", "train.toml was read"})
    EXPECT_TRUE(has(outcome.out, words)) << words << " is not in\n" << outcome.out;
  EXPECT_FALSE(std::filesystem::exists(here.path() / "runs")) << "a check creates no folders";
  // With --no-ranks only the file is checked.
  const Outcome read = here.coupler({"config", "check", "--no-ranks"});
  EXPECT_EQ(read.out, "The configuration is valid; train.toml was read.\n") << read.err;
}

TEST(ConfigRanks, OfOneProcess_AreStartedWhereThatIsAskedFor) {
  const Workplace here;
  const Outcome outcome = here.coupler({"config", "check", "--ranks", "-o", "training.seed=1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, ": 1 of 1 processes\n")) << outcome.out;
  const Outcome two = here.coupler({"config", "check", "-n", "2", "-o", "backend.use=gloo_cpu"});
  EXPECT_EQ(two.exit_code, 0) << two.err;
  EXPECT_TRUE(has(two.out, ": 2 of 2 processes\n")) << two.out;
}

struct Wrong {
  std::string name, toml;
  std::vector<std::string> words;  // after config check
  std::vector<std::string> said;
  int exit_code = 2;
};

void PrintTo(const Wrong& it, std::ostream* out) { *out << it.name; }

class WrongForRanks : public ::testing::TestWithParam<Wrong> {};

constexpr const char* kFsdp = "[backend]\nuse = \"fsdp\"\n[backend.fsdp]\nbase = \"gloo_cpu\"\n";

TEST_P(WrongForRanks, IsSaid_WithKeyAndPlace) {
  const Workplace here;
  here.write("train.toml", GetParam().toml);
  std::vector<std::string> words = {"config", "check"};
  words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
  const Outcome outcome = here.coupler(words);
  EXPECT_EQ(outcome.exit_code, GetParam().exit_code) << outcome.out << outcome.err;
  EXPECT_FALSE(has(outcome.out, "is valid")) << outcome.out;
  for (const std::string& text : GetParam().said)
    EXPECT_TRUE(has(outcome.out + outcome.err, text)) << text << " is not in\n"
                                                      << outcome.out << outcome.err;
}

INSTANTIATE_TEST_SUITE_P(
    Config, WrongForRanks,
    ::testing::Values(
        Wrong{"value",
              std::string(kFsdp) + "strategy = \"ful_shard\"\n",
              {"-n", "2"},
              {"invalid for 2 processes", "every rank: ", "train.toml:5:1: backend.fsdp.strategy",
               "full_shard, shard_grad_op"}},
        Wrong{"group",
              std::string(kFsdp) + "strategy = \"hybrid_shard\"\ngroup_size = 2\n",
              {"-n", "3"},
              {"train.toml:6:1: backend.fsdp.group_size", "does not divide the number of ranks"}},
        Wrong{
            "key", "[backend]\nuse = \"gloo_cpu\"\n[backend.gloo_cpu]\nchunk = 5\n", {}, {"chunk"}},
        Wrong{"folder",
              "[backend]\nuse = \"gloo_cpu\"\n[checkpoint]\ndir = \"train.toml/deeper\"\n",
              {"-n", "2"},
              {"every rank: ", "train.toml:4:1: checkpoint.dir", "is not a folder"}},
        Wrong{"contradiction",
              "[communication]\ngradients = \"bf16\"\nlocal_sgd_steps = 4\n",
              {},
              {"train.toml:2:1: communication.gradients", "set only one of the two"}},
        Wrong{"division",
              std::string(kFsdp) + "[communication]\ngradients = \"powersgd\"\n",
              {"-n", "2"},
              {"train.toml:6:1: communication.gradients", "the backend shards the model"}},
        Wrong{"program", "", {"./train"}, {"'./train' is one argument too many"}},
        Wrong{"word", "", {"--processes", "2"}, {"--processes"}},
        Wrong{"both", "", {"--no-ranks", "-n", "2"}, {"--no-ranks works only with"}},
        Wrong{"none", "[backend]\nuse = \"absent\"\n", {"-n", "2"}, {"absent"}, 3}),
    [](const auto& of) { return of.param.name; });

TEST(ConfigCommandLine, ThatSaysNotWhatToDo_IsRefused) {
  const Workplace here;
  const Outcome near = here.coupler({"config", "chek"});
  EXPECT_EQ(near.exit_code, 2);
  EXPECT_TRUE(has(near.err, "did you mean 'check'?")) << near.err;
  const Outcome open = here.coupler({"config", "-o", "training.seed=1"});
  EXPECT_EQ(open.exit_code, 2);
  EXPECT_TRUE(has(open.err, "give a subcommand, such as check, or --explain")) << open.err;
}

// One rank has a different environment than the others, as on another machine.
Outcome check_with_another_environment(const Workplace& here, const std::string& variable) {
  return here.coupler({"launch", "-n", "3", "-o", "backend.use=gloo_cpu", "/bin/sh", "-c",
                       "if [ $COUPLER_RANK = 1 ]; then export " + variable +
                           "; fi; exec " COUPLER_PROGRAM " config check-rank"});
}

TEST(ConfigRanks, ThatDiffer_AreNamed_WithBothValues) {
  const Workplace here;
  here.write("train.toml", "[training]\nseed = 4\n");
  const Outcome outcome = check_with_another_environment(here, "COUPLER_TRAINING_SEED=5");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(
      has(outcome.out, "rank 1: training.seed is 5 (COUPLER_TRAINING_SEED), but on rank 0 4 ("))
      << outcome.out;
  EXPECT_TRUE(has(outcome.out, "train.toml:2:1")) << outcome.out;
  // Settings that may differ between machines, for instance a disk.
  EXPECT_EQ(check_with_another_environment(here, "COUPLER_PROFILE_DIR=here").exit_code, 0);
}

TEST(ConfigRanks, OneOfWhichCannotReadTheConfiguration_IsNamed) {
  const Workplace here;
  const Outcome outcome = check_with_another_environment(here, "COUPLER_TRAINING_SEDE=5");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(has(outcome.out, "rank 1: environment: unknown variable 'COUPLER_TRAINING_SEDE'"))
      << outcome.out;
}

}  // namespace
}  // namespace coupler
