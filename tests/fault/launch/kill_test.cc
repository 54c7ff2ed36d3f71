// kill -9 of the launcher or any rank, at any moment, leaves no process behind.
#include <array>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "coupler_run.h"
#include "expect.h"

namespace coupler::testing_launch {
namespace {

using namespace std::chrono_literals;

// Every rank has a grandchild that would outlive it.
const std::string kRank =
    "sleep 60 & echo $! > child.$COUPLER_RANK; echo $$ > pid.$COUPLER_RANK; wait";

TEST(Launch, LauncherKilled_LeavesNoProcess) {
  for (int i = 0; i < kill_count(20); ++i) {
    CouplerRun run(launch_script(3, kRank));
    run.wait_for_pid("pid.0");
    run.signal(SIGKILL);
    EXPECT_EQ(run.wait().code, 128 + SIGKILL);
    ASSERT_TRUE(run.is_all_gone()) << "round " << i;
  }
}

TEST(Launch, LauncherKilledAtARandomMoment_LeavesNoProcess) {
  std::mt19937 random(5);
  for (int i = 0; i < kill_count(20); ++i) {
    CouplerRun run(launch_script(8, kRank));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30000));
    run.signal(SIGKILL);
    EXPECT_EQ(run.wait().code, 128 + SIGKILL);
    ASSERT_TRUE(run.is_all_gone()) << "round " << i;
  }
}

TEST(Launch, RankKilled_IsNamed_AndLeavesNoProcess) {
  for (int i = 0; i < kill_count(20); ++i) {
    CouplerRun run(launch_script(3, kRank));
    const int victim = i % 3;
    const pid_t pid = run.wait_for_pid("pid." + std::to_string(victim));
    ASSERT_GT(pid, 0);
    ::kill(pid, SIGKILL);
    const auto result = run.wait();
    EXPECT_EQ(result.code, 128 + SIGKILL);
    EXPECT_SAYS(result.error,
                "coupler: rank " + std::to_string(victim) + " was killed by signal 9 (Killed)");
    ASSERT_TRUE(run.is_all_gone()) << "round " << i;
  }
}

// The second is killed as soon as the first has ended, so that the launcher may see both at once.
// The order of the kill calls would not suffice: a process dies when it is scheduled. After 150 ms
// the launcher itself stops the second, so that a thread that was not scheduled proves nothing.
TEST(Launch, TwoRanksEndWithinAMillisecond_TheFirstIsNamed) {
  using Clock = std::chrono::steady_clock;
  std::mt19937 random(6);
  int within = 0;
  for (int i = 0; i < kill_count(20); ++i) {
    CouplerRun run(launch_script(3, "echo $$ > pid.$COUPLER_RANK; exec sleep 60"));
    std::array<pid_t, 3> pids{};
    for (size_t rank = 0; rank < pids.size(); ++rank) {
      pids[rank] = run.wait_for_pid("pid." + std::to_string(rank));
      ASSERT_GT(pids[rank], 0);
    }
    const size_t first = random() % 3;
    const size_t second = (first + 1 + random() % 2) % 3;
    ::kill(pids[first], SIGKILL);
    auto alive = Clock::now();
    for (auto seen = alive; state_of(pids[first]) != 'Z'; seen = Clock::now()) alive = seen;
    ::kill(pids[second], SIGKILL);
    const bool in_time = Clock::now() - alive < std::chrono::milliseconds(50);
    const auto result = run.wait();
    EXPECT_SAYS(result.error,
                "coupler: rank " + std::to_string(first) + " was killed by signal 9 (Killed)");
    if (!in_time) continue;
    ++within;
    EXPECT_SAYS(result.error,
                "then rank " + std::to_string(second) + " was killed by signal 9 (Killed)");
  }
  EXPECT_GT(within, 0);
}

}  // namespace
}  // namespace coupler::testing_launch
