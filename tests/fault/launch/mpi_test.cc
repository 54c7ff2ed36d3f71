// The launcher over mpirun: reports come from the ranks, not from mpirun; nothing is left behind.
#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <random>
#include <thread>

#include "coupler_run.h"
#include "expect.h"

namespace coupler::testing_launch {
namespace {

using namespace std::chrono_literals;

class LaunchMpiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* path :
         {"/usr/bin/mpirun.openmpi", "/usr/bin/mpirun", "/usr/local/bin/mpirun"}) {
      if (std::filesystem::exists(path)) {
        return;
      }
    }
    GTEST_SKIP() << "mpirun (Debian: openmpi-bin) is not installed";
  }
};

// Waits until the shims have reported the ranks' processes to the launcher: it then has a pidfd for
// each, and one for mpirun.
void wait_until_watched(pid_t launcher, size_t ranks) {
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  for (size_t watched = 0; watched <= ranks; std::this_thread::sleep_for(1ms)) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    watched = 0;
    std::error_code gone;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(launcher) + "/fd", gone)) {
      watched += std::filesystem::read_symlink(entry.path(), gone) == "anon_inode:[pidfd]" ? 1 : 0;
    }
  }
}

const std::string kMpiRank = "sleep 60 & echo $$ > pid.$COUPLER_RANK; wait";

// The path of that launcher's folder for Open MPI's files; "" if it does not exist.
std::string shared_memory_of(pid_t launcher) {
  const auto name = fmt::format("coupler-mpi-{}-", launcher);
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().starts_with(name)) return entry.path();
  }
  return "";
}

TEST_F(LaunchMpiTest, Ranks_Meet_AndExitWith0) {
  const auto result =
      run_coupler(launch(3, {COUPLER_BINARY_DIR "/bin/tests/rendezvous_meet"}, "mpi"));
  EXPECT_EQ(result.code, 0) << result.error;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_SAYS(result.output, "rank " + std::to_string(rank) + " of 3 met 3");
  }
}

TEST_F(LaunchMpiTest, RanksVariables_AreBothLaunchers_AndAgree) {
  const auto result = run_coupler(
      launch_script(2, "[ $COUPLER_RANK = $OMPI_COMM_WORLD_RANK ] && echo same", "mpi"));
  EXPECT_EQ(result.output, "same\nsame\n") << result.error;
}

TEST_F(LaunchMpiTest, RankThatFails_IsNamed_WithItsCodeAndLastLines) {
  CouplerRun run(launch_script(2,
                               "[ $COUPLER_RANK = 1 ] && { echo 'coupler: error: no memory' >&2; "
                               "exit 7; }; sleep 60",
                               "mpi"));
  const auto result = run.wait();
  EXPECT_EQ(result.code, 7);
  const auto report = result.error.find("coupler: rank 1 exited with code 7");
  ASSERT_NE(report, std::string::npos) << result.error;
  EXPECT_SAYS(result.error.substr(report), "    coupler: error: no memory");
  EXPECT_SAYS_NOT(result.error.substr(report), "mpirun");  // the launcher's report comes last
  EXPECT_TRUE(run.is_all_gone());
}

// The shims may report in any order.
TEST_F(LaunchMpiTest, TwoRanksEndWithinAMillisecond_TheFirstIsNamed) {
  for (int i = 0; i < kill_count(5); ++i) {
    CouplerRun run(launch_script(3, "echo $$ > pid.$COUPLER_RANK; exec sleep 60", "mpi"));
    std::array<pid_t, 3> pids{};
    for (size_t rank = 0; rank < pids.size(); ++rank) {
      pids[rank] = run.wait_for_pid("pid." + std::to_string(rank));
      ASSERT_GT(pids[rank], 0);
    }
    wait_until_watched(run.pid(), pids.size());
    const auto first = static_cast<size_t>(i % 3);
    const size_t second = (first + 1) % 3;
    ::kill(pids[first], SIGKILL);
    while (state_of(pids[first]) != 'Z') {
    }
    ::kill(pids[second], SIGKILL);
    EXPECT_SAYS(run.wait().error,
                "coupler: rank " + std::to_string(first) + " was killed by signal 9 (Killed)");
  }
}

TEST_F(LaunchMpiTest, Prefix_NamesTheRank) {
  const auto result = run_coupler(launch(2, {"--prefix", "/bin/sh", "-c", "echo text"}, "mpi"));
  EXPECT_SAYS(result.output, "[rank 0] text\n");
  EXPECT_SAYS(result.output, "[rank 1] text\n");
}

TEST_F(LaunchMpiTest, Input_GoesToRankZero) {
  const auto result = run_coupler(launch_script(2, "cat", "mpi"), {}, "typed\n");
  EXPECT_EQ(result.output, "typed\n") << result.error;
}

TEST_F(LaunchMpiTest, Sigterm_ReachesTheRanks_WhichMayFinish) {
  CouplerRun run(launch_script(
      2,
      "trap 'echo saved; exit 75' TERM; echo $$ > pid.$COUPLER_RANK; while :; do sleep 0.01; done",
      "mpi"));
  run.wait_for_pid("pid.0");
  run.wait_for_pid("pid.1");
  run.signal(SIGTERM);
  const auto result = run.wait();
  EXPECT_EQ(result.code, 75) << result.error;
  EXPECT_EQ(result.output, "saved\nsaved\n");
  EXPECT_TRUE(run.is_all_gone());
}

// On a busy machine mpirun may get its turn late. Here it is stopped meanwhile.
TEST_F(LaunchMpiTest, OutputThatMpirunHasNotForwardedYet_IsNotLost) {
  CouplerRun run(launch_script(
      2,
      "trap 'echo saved; exit 75' TERM; echo $$ > pid.$COUPLER_RANK; while :; do sleep 0.01; done",
      "mpi"));
  const pid_t first = run.wait_for_pid("pid.0"), second = run.wait_for_pid("pid.1");
  const pid_t mpirun = parent_of(parent_of(first));
  ASSERT_EQ(parent_of(mpirun), run.pid());
  ::kill(mpirun, SIGSTOP);
  run.signal(SIGTERM);
  while (state_of(first) != 'Z' || state_of(second) != 'Z') std::this_thread::sleep_for(5ms);
  std::this_thread::sleep_for(500ms);
  ::kill(mpirun, SIGCONT);
  const auto result = run.wait();
  EXPECT_EQ(result.code, 75) << result.error;
  EXPECT_EQ(result.output, "saved\nsaved\n");
  EXPECT_TRUE(run.is_all_gone());
}

TEST_F(LaunchMpiTest, KillOfAnyOfThem_LeavesNoProcess_AndIsSaid) {
  for (int i = 0; i < kill_count(8); ++i) {
    CouplerRun run(launch_script(2, kMpiRank, "mpi"));
    const pid_t rank = run.wait_for_pid("pid.1");
    ASSERT_GT(run.wait_for_pid("pid.0"), 0) << "round " << i;
    const pid_t shim = parent_of(rank);
    const pid_t mpirun = parent_of(shim);
    ASSERT_EQ(parent_of(mpirun), run.pid());
    const pid_t victims[] = {rank, shim, mpirun, run.pid()};
    ::kill(victims[i % 4], SIGKILL);
    const auto result = run.wait();
    EXPECT_NE(result.code, 0);
    if (i % 4 == 0) {
      EXPECT_SAYS(result.error, "coupler: rank 1 was killed by signal 9");
      EXPECT_EQ(result.code, 128 + SIGKILL);
    } else if (i % 4 == 1) {
      // Of a rank that does not get its turn before mpirun kills it, too, mpirun says which it was.
      EXPECT_TRUE(result.error.find("coupler: rank 1 vanished") != std::string::npos ||
                  result.error.find("process rank 1 with PID") != std::string::npos)
          << result.error;
    } else if (i % 4 == 2) {
      EXPECT_SAYS(result.error, "coupler: mpirun was killed by signal 9");
    }
    ASSERT_TRUE(run.is_all_gone()) << "round " << i << "\n" << result.error;
    ASSERT_EQ(shared_memory_of(run.pid()), "") << "round " << i;
  }
}

TEST_F(LaunchMpiTest, LauncherKilledAtARandomMoment_LeavesNoProcess) {
  std::mt19937 random(6);
  for (int i = 0; i < kill_count(8); ++i) {
    CouplerRun run(launch_script(2, kMpiRank, "mpi"));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 400000));
    run.signal(SIGKILL);
    EXPECT_EQ(run.wait().code, 128 + SIGKILL);
    ASSERT_TRUE(run.is_all_gone()) << "round " << i << "\n" << run.describe();
    ASSERT_EQ(shared_memory_of(run.pid()), "") << "round " << i;
  }
}

}  // namespace
}  // namespace coupler::testing_launch
