// Signals sent to the launcher reach the ranks.
#include <csignal>
#include <thread>

#include "coupler_run.h"
#include "expect.h"

namespace coupler::testing_launch {
namespace {

using namespace std::chrono_literals;

const std::string kWait = "echo $$ > pid.$COUPLER_RANK; while :; do sleep 0.01; done";

void wait_for_ranks(const CouplerRun& run) {
  EXPECT_GT(run.wait_for_pid("pid.0"), 0);
  EXPECT_GT(run.wait_for_pid("pid.1"), 0);
}

TEST(Launch, SigtermOrSigint_EndsTheRanks_AndExitsWith128More) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    CouplerRun run(launch_script(2, kWait));
    wait_for_ranks(run);
    run.signal(signal);
    const auto result = run.wait();
    EXPECT_EQ(result.code, 128 + signal);
    EXPECT_SAYS(result.error, "coupler: ended by signal " + std::to_string(signal));
    EXPECT_TRUE(run.is_all_gone());
  }
}

TEST(Launch, RanksThatFinishAfterSigterm_GetTheTime_AndTheirCodeCounts) {
  CouplerRun run(launch_script(2, "trap 'sleep 1; echo saved; exit 75' TERM; " + kWait));
  wait_for_ranks(run);
  run.signal(SIGTERM);
  const auto result = run.wait();
  EXPECT_EQ(result.code, 75);
  EXPECT_EQ(result.output, "saved\nsaved\n");
}

TEST(Launch, SecondSigint_EndsRanksThatIgnoreTheFirst) {
  CouplerRun run(launch_script(2, "trap '' INT; " + kWait));
  wait_for_ranks(run);
  run.signal(SIGINT);
  std::this_thread::sleep_for(50ms);
  run.signal(SIGINT);
  EXPECT_EQ(run.wait(10s).code, 128 + SIGKILL);
  EXPECT_TRUE(run.is_all_gone());
}

TEST(Launch, UserSignals_ArePassedOn_AndEndNothing) {
  CouplerRun run(launch_script(2, "trap 'echo got; exit 0' USR1; " + kWait));
  wait_for_ranks(run);
  run.signal(SIGUSR1);
  const auto result = run.wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.output, "got\ngot\n");
}

}  // namespace
}  // namespace coupler::testing_launch
