// Jobs over the sharding plugins as users start them: runs that agree bitwise, and the errors of
// sharding. Every job has a deadline of a few seconds and ends by itself.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <regex>
#include <sstream>

#include "run_program.h"

namespace coupler {
namespace {

using Texts = std::vector<std::string>;

// A plugin, its base and its options ("fsdp/gloo_cpu strategy=no_shard"); or a transport alone.
struct Backend {
  std::string plugin, base;
  Texts options;

  Texts arguments() const {
    const std::string table =
        "backend." + plugin.substr(plugin.find("coupler_") == std::string::npos
                                       ? 0
                                       : plugin.find("coupler_") + 8);
    const std::string key = table.substr(0, table.find(".so"));
    Texts result{"-o", "backend.use=" + plugin};
    if (!base.empty()) result.insert(result.end(), {"-o", key + ".base=" + base});
    for (const std::string& option : options) {
      result.insert(result.end(), {"-o", key + "." + option});
    }
    return result;
  }
};

Outcome run(const Backend& backend, const std::string& expect, const std::string& check,
            int processes = 2, const Texts& more = {}) {
  const Workplace here;
  Texts arguments{"launch", "-n", std::to_string(processes), "-o", "backend.timeout=3s"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  for (const std::string& one : backend.arguments()) arguments.push_back(one);
  for (const std::string& one :
       {std::string(SHARDING_CHECKS), std::string("--expect"), expect, check})
    arguments.push_back(one);
  return here.coupler(arguments);
}

Backend zero(int stage, const std::string& base = "gloo_cpu", Texts more = {}) {
  more.push_back("stage=" + std::to_string(stage));
  return {"deepspeed_like", base, more};
}
Backend fsdp(Texts options = {}, const std::string& base = "gloo_cpu") {
  return {"fsdp", base, std::move(options)};
}

void expect_says(const Outcome& outcome, const Texts& parts) {
  EXPECT_NE(outcome.exit_code, 0) << outcome.out;
  for (const std::string& part : parts) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << "no '" << part << "' in\n"
                                                         << outcome.err;
  }
}

// Expects the parts in the error when a job prepares a Tower over this backend.
void refused(const Backend& backend, const Texts& parts, int processes = 2) {
  expect_says(run(backend, "gathered", "losses_of_twenty_steps", processes), parts);
}

// ---- Bit for bit ----

class SameBits : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string run_of(const Backend& backend, const std::string& expect,
                            const Texts& more = {}) {
    const Outcome outcome = run(backend, expect, GetParam(), 2, more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 22) << outcome.out;
    return outcome.out;
  }
};

TEST_P(SameBits, ZeroOneAndTwo_EqualReplication) {
  const std::string replicated = run_of({"gloo_cpu", "", {}}, "replicated");
  EXPECT_EQ(run_of(zero(0), "replicated"), replicated);
  EXPECT_EQ(run_of(zero(1), "divided"), replicated);
  EXPECT_EQ(run_of(zero(2), "divided"), replicated);
}

TEST_P(SameBits, ZeroOneAndTwoOverMpi_EqualReplication) {
  const std::string replicated = run_of({"mpi", "", {}}, "replicated");
  EXPECT_EQ(run_of(zero(1, "mpi"), "divided"), replicated);
  EXPECT_EQ(run_of(zero(2, "mpi", {"reduce_bucket_size=100"}), "divided"), replicated);
}

// The sum of two ranks' gradients is the same in any order.
TEST_P(SameBits, GatheredParameters_EqualReplicationOfTwoRanks) {
  const std::string replicated = run_of({"gloo_cpu", "", {}}, "replicated");
  EXPECT_EQ(run_of(zero(3, "gloo_cpu", {"stage3_param_persistence_threshold=0"}), "gathered"),
            replicated);
  EXPECT_EQ(run_of(fsdp({"unit_join_below=0", "prefetch=2"}), "gathered"), replicated);
}

// RMSprop keeps its own state, which is not offloaded.
TEST_P(SameBits, OffloadedState_EqualsStateInMemory) {
  const std::string replicated = run_of({"gloo_cpu", "", {}}, "replicated");
  const std::string folder = std::filesystem::temp_directory_path();
  const Texts parameters{"offload_param.device=nvme", "offload_param.nvme_path=" + folder,
                         "stage3_param_persistence_threshold=0"};
  EXPECT_EQ(run_of(zero(3, "gloo_cpu", parameters), "gathered"), replicated);
  if (GetParam() == std::string("print_run")) return;
  Texts all = parameters;
  all.insert(all.end(), {"offload_optimizer.device=nvme", "offload_optimizer.nvme_path=" + folder,
                         "offload_optimizer.buffer_count=1"});
  EXPECT_EQ(run_of(zero(3, "gloo_cpu", all), "gathered"), replicated);
  EXPECT_EQ(run_of(zero(2, "gloo_cpu", {all.end() - 3, all.end()}), "divided"), replicated);
  EXPECT_EQ(run_of(fsdp({"unit_join_below=0", "offload.device=nvme", "offload.nvme_path=" + folder,
                         "prefetch=2"}),
                   "gathered"),
            replicated);
  const Texts of_replicas{"-o", "memory.offload_optimizer_device=nvme",
                          "-o", "memory.offload_optimizer_nvme_path=" + folder,
                          "-o", "memory.offload_optimizer_buffer_count=1",
                          "-o", "memory.offload_optimizer_sub_group_size=50"};
  EXPECT_EQ(run_of({"gloo_cpu", "", {}}, "replicated", of_replicas), replicated);
  EXPECT_EQ(run_of(zero(0), "replicated", of_replicas), replicated);
}

TEST_P(SameBits, ActivationCheckpointing_EqualsNone) {
  const Texts more{"-o", "memory.activation_checkpointing=[\"*\"]"};
  const std::string replicated = run_of({"gloo_cpu", "", {}}, "replicated");
  EXPECT_EQ(run_of({"gloo_cpu", "", {}}, "replicated", more), replicated);
  EXPECT_EQ(run_of(zero(3, "gloo_cpu", {"stage3_param_persistence_threshold=0"}), "gathered", more),
            replicated);
  EXPECT_EQ(run_of(fsdp({"unit_join_below=0", "prefetch=2"}, "mpi"), "gathered", more), replicated);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, SameBits, ::testing::Values("print_run", "print_fused_run"),
                         [](const auto& instance) { return std::string(instance.param); });

// ---- Options ----

TEST(Options, StageThatDoesNotExist_IsNamedWithThoseThatDo) {
  refused({"deepspeed_like", "gloo_cpu", {"stage=4"}}, {"stage", "4", "0", "3"});
}

TEST(Options, StrategyThatDoesNotExist_IsNamedWithThoseThatDo) {
  refused(fsdp({"strategy=half_shard"}),
          {"half_shard", "full_shard", "shard_grad_op", "hybrid_shard", "no_shard"});
}

TEST(Options, GroupSizeThatDoesNotDivideTheWorld_IsNamedWithThoseThatDo) {
  refused(fsdp({"strategy=hybrid_shard", "group_size=2"}),
          {"group_size", "2", "does not divide", "3", "valid: 1 and 3"}, 3);
}

TEST(Options, PatternsThatMatchOneModule_AreBothNamed) {
  refused(fsdp({"units=names", "unit_names=i*, *n"}), {"'i*'", "'*n'", "overlap", "'in'"});
}

TEST(Options, UnitThatMatchesNothing_IsNamedWithTheModules) {
  refused(fsdp({"units=names", "unit_names=blocks.*"}), {"'blocks.*'", "tokens", "mid"});
}

TEST(Options, StateOfAnOptimizerThatKeepsItsOwn_IsNotOffloaded) {
  const std::string folder = std::filesystem::temp_directory_path();
  expect_says(
      run(fsdp({"offload.device=nvme", "offload.nvme_path=" + folder}), "gathered", "print_run"),
      {"the state of this optimizer cannot be offloaded", "only that of SGD, Adam, AdamW",
       "offload the parameters only"});
}

TEST(Options, OffloadOfReplicas_OverAModelThatIsDivided_NamesTheOptionsInstead) {
  expect_says(run(zero(1), "divided", "losses_of_twenty_steps", 2,
                  {"-o", "memory.offload_optimizer_device=cpu"}),
              {"memory.offload_optimizer_device is \"cpu\"", "the backend shards the model",
               "coupler config keys deepspeed_like"});
}

TEST(Options, OffloadOfReplicas_WithoutAFolder_NamesTheKey) {
  expect_says(run({"gloo_cpu", "", {}}, "replicated", "losses_of_twenty_steps", 2,
                  {"-o", "memory.offload_optimizer_device=nvme"}),
              {"no folder is named", "memory.offload_optimizer_nvme_path"});
}

TEST(Options, OffloadOfReplicas_OfAnOptimizerThatKeepsItsOwn_IsRefused) {
  const std::string folder = std::filesystem::temp_directory_path();
  expect_says(run({"gloo_cpu", "", {}}, "replicated", "print_run", 2,
                  {"-o", "memory.offload_optimizer_device=nvme", "-o",
                   "memory.offload_optimizer_nvme_path=" + folder}),
              {"the state of this optimizer cannot be offloaded", "only that of SGD, Adam, AdamW"});
}

// ---- Bases ----

TEST(Bases, BaseThatIsNotThere_IsNamed) {
  refused(fsdp({}, "infiniband"), {"infiniband", "gloo_cpu"});
}

TEST(Bases, BaseThatShards_IsRefused) {
  refused(fsdp({}, "deepspeed_like"), {"backend.fsdp.base", "deepspeed_like", "transport"});
  refused({"deepspeed_like", "fsdp", {}}, {"backend.deepspeed_like.base", "fsdp", "transport"});
}

TEST(Bases, BaseWithoutReduceScatter_IsNamedWithWhatItLacks) {
  refused(fsdp({}, NO_SCATTER),
          {"'fsdp'", "reduce_scatter", "backend.fsdp.base", "coupler plugins --matrix"});
  refused(zero(1, NO_SCATTER), {"'deepspeed_like'", "reduce_scatter"});
}

// Without sharding, reduce_scatter is not needed.
TEST(Bases, BaseWithoutReduceScatter_CanReplicate) {
  const Outcome outcome = run(zero(0, NO_SCATTER), "replicated", "losses_of_twenty_steps");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

// ---- A third party's plan ----

class Plans : public ::testing::Test {
 protected:
  static void refused_plan(const std::string& fault, const Texts& parts) {
    refused({BAD_PLAN, "gloo_cpu", {"fault=" + fault}}, parts);
  }
};

TEST_F(Plans, PlanWithoutFault_Trains) {
  const Outcome outcome = run({BAD_PLAN, "gloo_cpu", {}}, "gathered", "losses_of_twenty_steps");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}
TEST_F(Plans, ParameterInTwoUnits_IsNamedWithBoth) {
  refused_plan("overlap", {"'bad_plan'", "units overlap", "'in.weight'", "'unit of in.weight'",
                           "'the other unit'"});
}
TEST_F(Plans, BoundsThatEndEarly_AreShownWithTheParameter) {
  refused_plan("short", {"'bad_plan'", "[0, 203, 203]", "204 elements", "'in.weight'"});
}
TEST_F(Plans, BoundsThatFall_AreShownWithTheParameter) {
  refused_plan("descending", {"[0, 205, 204]", "'in.weight'"});
}
TEST_F(Plans, PlanOfOneRankAlone_IsNamedWithUnitAndRank) {
  refused_plan("alone", {"'unit of in.weight'", "rank 1"});
}
TEST_F(Plans, ParameterThatIsNotThere_IsNamedWithTheUnit) {
  refused_plan("unknown", {"'unit of in.weight'", "parameter number"});
}
TEST_F(Plans, WrongNumbers_AreNamedWithTheUnit) {
  refused_plan("keep", {"'unit of in.weight'", "keep 9"});
  refused_plan("dtype", {"'unit of in.weight'", "i32"});
}

// ---- Ranks that diverge ----

class Parting : public ::testing::TestWithParam<const char*> {
 protected:
  static Backend backend() {
    const std::string name = GetParam();
    if (name == "fsdp") return fsdp({"unit_join_below=0"});
    if (name == "fsdp_ahead") return fsdp({"unit_join_below=0", "prefetch=2"}, "mpi");
    return zero(3, "gloo_cpu", {"stage3_param_persistence_threshold=0"});
  }
  void SetUp() override { begin_ = std::chrono::steady_clock::now(); }
  // Ten times the deadline of 3 seconds.
  void TearDown() override {
    EXPECT_LT(std::chrono::steady_clock::now() - begin_, std::chrono::seconds(30));
  }

 private:
  std::chrono::steady_clock::time_point begin_;
};

TEST_P(Parting, ParameterTouchedByOneRank_NamesUnitAndRanks) {
  expect_says(run(backend(), "gathered", "touched_by_rank_1"),
              {"rank 1: touched_by_rank_1 FAILED", "unit 'in'", "rank 0",
               "coupler::summon_full_parameters"});
  expect_says(run(backend(), "gathered", "touched_by_rank_0"),
              {"rank 0: touched_by_rank_0 FAILED", "unit 'in'", "rank 1",
               "coupler::summon_full_parameters"});
}

// A rank may need parameters that the others do not use: either all results are right, or an error
// names the waiting rank.
TEST_P(Parting, EvaluationInOrdersOfTheirOwn_EndsRightOrInTime) {
  const Outcome outcome = run(backend(), "gathered", "evaluation_in_an_order_of_its_own");
  if (outcome.exit_code != 0) expect_says(outcome, {"timed out after 3 s", "rank 0"});
}

TEST_P(Parting, ModelsThatDiffer_AreNamed) {
  expect_says(run(backend(), "gathered", "other_shape_on_rank_1"), {"'in'", "rank 1", "19"});
  expect_says(run(backend(), "gathered", "other_number_of_layers_on_rank_1"),
              {"number of parameters", "rank 1", "2", "4"});
}

TEST_P(Parting, RankKilledInBackward_IsNamedAndAllEnd) {
  const Outcome outcome = run(backend(), "gathered", "killed_in_backward");
  expect_says(outcome, {"rank 1 was killed by signal 9"});
  const std::regex pid("pid (\\d+)");
  int seen = 0;
  for (std::sregex_iterator match(outcome.err.begin(), outcome.err.end(), pid), end; match != end;
       ++match) {
    EXPECT_EQ(kill(std::stoi((*match)[1]), 0), -1) << "a rank still runs: " << match->str();
    ++seen;
  }
  EXPECT_GE(seen, 2) << outcome.err;
}

INSTANTIATE_TEST_SUITE_P(Plugins, Parting,
                         ::testing::Values("fsdp", "fsdp_ahead", "deepspeed_like"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace coupler
