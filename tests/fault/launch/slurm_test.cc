// A real Slurm with one node: users' commands, and `coupler launch --via slurm`.
#include <memory>

#include "coupler_run.h"
#include "expect.h"
#include "slurm_cluster.h"

namespace coupler::testing_launch {
namespace {

const std::string kLaunch = COUPLER_BINARY_DIR "/bin/coupler launch -o backend.use=gloo_cpu ";

class SlurmTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (SlurmCluster::is_installed()) {
      cluster_ = std::make_unique<SlurmCluster>();
    }
  }
  static void TearDownTestSuite() { cluster_.reset(); }
  void SetUp() override {
    if (!cluster_) {
      GTEST_SKIP() << "Slurm (Debian: slurm-wlm, with munge) is not installed";
    }
    ASSERT_TRUE(cluster_->is_up()) << cluster_->logs();
  }

  static void expect_all_met(const SlurmCluster::Result& result, int world_size) {
    EXPECT_EQ(result.code, 0) << result.output;
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_SAYS(result.output, "rank " + std::to_string(rank) + " of " +
                                     std::to_string(world_size) + " met " +
                                     std::to_string(world_size));
    }
  }

  // A command that prints a batch script's output. (sbatch --wait polls only every few seconds.)
  static std::string submit(const std::string& options_and_script) {
    return "job=$(sbatch --parsable --output=job.out " + options_and_script +
           ") || exit 1; while squeue --noheader --job=$job 2>&1 | grep -q .; do sleep 0.1; done; "
           "cat job.out; rm job.out";
  }
  static SlurmCluster::Result batch(const std::string& options, const std::string& script) {
    return cluster_->run("cat > job.sh <<'END'\n#!/bin/sh\n" + script + "\nEND\n" +
                         submit(options + " job.sh"));
  }

  static std::unique_ptr<SlurmCluster> cluster_;
};
std::unique_ptr<SlurmCluster> SlurmTest::cluster_;

TEST_F(SlurmTest, UsersSrun_RanksMeet) {
  expect_all_met(cluster_->run("srun --ntasks=3 " + kMeet), 3);
  expect_all_met(batch("--ntasks=3", "srun --ntasks=2 " + kMeet), 2);
}

TEST_F(SlurmTest, ShellOfABatchJob_IsNoRank_AndMayLaunch) {
  const auto result = batch("--ntasks=3", kMeet + "\n" + kLaunch + "-n 2 " + kMeet);
  EXPECT_SAYS(result.output, "rank 0 of 1 met 1");
  expect_all_met(result, 2);
}

TEST_F(SlurmTest, ViaSlurm_InAnAllocation_StartsItsTasks) {
  expect_all_met(cluster_->run("salloc --ntasks=3 " + kLaunch + "--via slurm " + kMeet), 3);
  expect_all_met(batch("--ntasks=4", kLaunch + "--via slurm -n 2 --log-dir logs --prefix " + kMeet +
                                         "; cat logs/rank-0.log logs/rank-1.log"),
                 2);
}

TEST_F(SlurmTest, PrintedScript_IsTakenBySbatch) {
  expect_all_met(cluster_->run(kLaunch + "--via slurm --print -n 3 " + kMeet + " > printed.sh; " +
                               submit("printed.sh")),
                 3);
}

TEST_F(SlurmTest, RankThatFails_EndsTheJob_NothingIsLeft) {
  const auto result =
      cluster_->run("salloc --ntasks=2 " + kLaunch +
                    "--via slurm sh -c '[ $SLURM_PROCID = 1 ] && exit 7; sleep 50'");
  EXPECT_SAYS(result.output, "task 1: Exited with exit code 7");
  EXPECT_SAYS(result.output, "coupler: srun ");
  EXPECT_NE(result.code, 0);
  EXPECT_TRUE(cluster_->is_empty());
}

TEST_F(SlurmTest, LauncherStartedByASrunOfSeveral_IsRefused) {
  const auto result = cluster_->run("srun --ntasks=2 " + kLaunch + "-n 2 " + kMeet);
  EXPECT_EQ(result.code, 2);
  EXPECT_SAYS(result.output, "itself started 2 times by Slurm");
  EXPECT_SAYS_NOT(result.output, "met");
}

TEST_F(SlurmTest, MoreProcessesThanTasks_IsRefused) {
  const auto result = cluster_->run("salloc --ntasks=2 " + kLaunch + "--via slurm -n 3 " + kMeet);
  EXPECT_EQ(result.code, 2);
  EXPECT_SAYS(result.output, "3 processes exceed the 2 tasks of this allocation");
}

TEST_F(SlurmTest, RankVariablesExportedForAllTasks_AreRefused_NamingBoth) {
  const auto result = cluster_->run("RANK=0 WORLD_SIZE=2 srun --ntasks=2 " + kMeet);
  EXPECT_EQ(result.code, 2);
  EXPECT_SAYS(result.output, "RANK=0");
  EXPECT_SAYS(result.output, "SLURM_PROCID=1");
}

}  // namespace
}  // namespace coupler::testing_launch
