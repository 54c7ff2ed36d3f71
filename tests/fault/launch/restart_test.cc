// --max-restarts: a failed job is started again, with nothing left of the previous start.
#include <fmt/format.h>

#include <csignal>
#include <filesystem>

#include "coupler_run.h"
#include "expect.h"

namespace coupler::testing_launch {
namespace {

using namespace std::chrono_literals;

std::vector<std::string> restarting(const std::string& count, const std::string& script,
                                    const std::string& backend = "gloo_cpu") {
  auto words = launch_script(2, script, backend);
  words.insert(words.begin() + 1, {"--max-restarts", count});
  return words;
}

int starts(const CouplerRun& run) {
  int count = 0;
  while (std::filesystem::exists(fmt::format("{}/start.{}", run.folder(), count))) ++count;
  return count;
}

// Succeeds in the third start; each start has its own store.
const std::string kThirdTime =
    "echo \"$COUPLER_JOB_FILE\" > start.$COUPLER_RESTART_COUNT; "
    "[ $COUPLER_RESTART_COUNT = 2 ] || exit 7; exec " COUPLER_BINARY_DIR
    "/bin/tests/rendezvous_meet";

TEST(LaunchRestarts, FailedJob_IsStartedAgain_UntilItSucceeds) {
  CouplerRun run(restarting("5", kThirdTime));
  const auto result = run.wait();
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(starts(run), 3);
  EXPECT_SAYS(result.error, "coupler: restart 1 of 5\n");
  EXPECT_SAYS(result.error, "coupler: restart 2 of 5\n");
  EXPECT_SAYS(result.output, "rank 1 of 2 met 2");
  EXPECT_TRUE(run.is_all_gone());
}

TEST(LaunchRestarts, OverMpirun_TheSame) {
  if (!std::filesystem::exists("/usr/bin/mpirun.openmpi")) {
    GTEST_SKIP() << "mpirun.openmpi (Debian: openmpi-bin) is not installed";
  }
  CouplerRun run(restarting("5", kThirdTime, "mpi"));
  const auto result = run.wait();
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(starts(run), 3);
  EXPECT_TRUE(run.is_all_gone());
}

TEST(LaunchRestarts, JobThatFailsAlways_EndsWithItsCode) {
  CouplerRun run(restarting("2", "touch start.$COUPLER_RESTART_COUNT; exit 7"));
  EXPECT_EQ(run.wait().code, 7);
  EXPECT_EQ(starts(run), 3);
}

TEST(LaunchRestarts, WrongConfiguration_OrASignalToUs_IsTheEnd) {
  CouplerRun wrong(restarting("2", "touch start.$COUPLER_RESTART_COUNT; exit 2"));
  EXPECT_EQ(wrong.wait().code, 2);
  EXPECT_EQ(starts(wrong), 1);
  CouplerRun ended(restarting("2", "echo > start.$COUPLER_RESTART_COUNT; sleep 60"));
  ended.wait_for_file("start.0");
  ended.signal(SIGTERM);
  EXPECT_EQ(ended.wait().code, 128 + SIGTERM);
  EXPECT_EQ(starts(ended), 1);
}

TEST(LaunchRestarts, WithoutTheOption_NothingIsRestarted_NorSet) {
  const auto result = run_coupler(launch_script(1, "echo \"<$COUPLER_RESTART_COUNT>\"; exit 7"),
                                  {{"COUPLER_RESTART_COUNT", "9"}});
  EXPECT_EQ(result.code, 7);
  EXPECT_EQ(result.output, "<>\n") << "an outer launch's count does not apply";
}

TEST(LaunchRestarts, NoNumber_IsRefused) {
  const auto result = run_coupler(restarting("often", "true"));
  EXPECT_EQ(result.code, 2);
  EXPECT_SAYS(result.error, "--max-restarts");
}

}  // namespace
}  // namespace coupler::testing_launch
