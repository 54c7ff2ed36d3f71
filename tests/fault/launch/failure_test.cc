// A rank fails: the others are stopped, and the report names the rank that failed first.
#include <csignal>
#include <filesystem>

#include "coupler_run.h"
#include "expect.h"

namespace coupler::testing_launch {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST(Launch, AllRanksSucceed_ExitsWith0_Silently) {
  const auto result = run_coupler(launch_script(4, "true"));
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.error, "");
}

TEST(Launch, OneRankFails_StopsTheRest_AndExitsWithItsCode) {
  CouplerRun run(launch_script(
      3,
      "[ $COUPLER_RANK = 1 ] && { echo noise >&2; echo 'coupler: error: the disk is full' >&2; "
      "exit 7; }; sleep 60"));
  const auto begin = Clock::now();
  const auto result = run.wait();
  EXPECT_LT(Clock::now() - begin, 10s);  // ten times the promised second
  EXPECT_EQ(result.code, 7);
  EXPECT_SAYS(result.error, "coupler: rank 1 exited with code 7");
  EXPECT_SAYS(result.error, "    coupler: error: the disk is full");
  EXPECT_SAYS(result.error, "2 other ranks were stopped");
  EXPECT_TRUE(run.is_all_gone());
}

// A symbolic link is followed: the file that it leads to is written.
TEST(Launch, Outcome_IsWritten_AlsoWhereALinkLeads) {
  const auto failing = [](const std::string& outcome) {
    auto words = launch_script(2,
                               "[ $COUPLER_RANK = 1 ] && { yes | head -n 999 > kept; ln -s kept "
                               "link; exit 7; }; sleep 60");
    words.insert(words.begin() + 1, {"--outcome", outcome});
    return words;
  };
  const std::string expected = "{\"exit_code\":7,\"how\":\"exited with code 7\",\"rank\":1}\n";
  CouplerRun plain(failing("outcome.json"));
  EXPECT_EQ(plain.wait().code, 7);
  EXPECT_EQ(plain.wait_for_file("outcome.json"), expected);
  CouplerRun linked(failing("link"));
  EXPECT_EQ(linked.wait().code, 7);
  EXPECT_EQ(linked.wait_for_file("kept"), expected);
  EXPECT_TRUE(std::filesystem::is_symlink(linked.folder() + "/link"));
  const auto full = run_coupler(failing("/dev/full"));
  EXPECT_EQ(full.code, 7);
  EXPECT_SAYS(full.error, "coupler: --outcome: cannot write /dev/full: No space left on device");
}

TEST(Launch, OneRankIsKilledByASignal_NamesIt_AndExitsWith128More) {
  const auto result =
      run_coupler(launch_script(2, "[ $COUPLER_RANK = 0 ] && kill -SEGV $$; sleep 60"));
  EXPECT_EQ(result.code, 128 + SIGSEGV);
  EXPECT_SAYS(result.error, "coupler: rank 0 was killed by signal 11 (Segmentation fault)");
}

TEST(Launch, RankThatIgnoresSigterm_IsKilled) {
  CouplerRun run(
      launch_script(2,
                    "[ $COUPLER_RANK = 1 ] && { while [ ! -e ready ]; do :; done; exit 3; }; "
                    "trap '' TERM; touch ready; while :; do sleep 60; done"));
  const auto result = run.wait(10s);
  EXPECT_EQ(result.code, 3);
  EXPECT_TRUE(run.is_all_gone());
}

TEST(Launch, PeerLostBeforeItsCauseIsSeen_DoesNotHideTheCause) {
  // Rank 0 loses its peer and is seen first; rank 1, which failed for another reason, is at fault.
  const auto result = run_coupler(launch_script(
      3,
      "[ $COUPLER_RANK = 0 ] && exit 4; [ $COUPLER_RANK = 1 ] && { sleep 0.3; exit 9; }; "
      "sleep 60"));
  EXPECT_EQ(result.code, 9);
  EXPECT_SAYS(result.error, "coupler: rank 1 exited with code 9");
  EXPECT_SAYS(result.error, "then rank 0 exited with code 4");
}

TEST(Launch, PeerLostOnly_ExitsWith4) {
  const auto result = run_coupler(launch_script(2, "[ $COUPLER_RANK = 1 ] && exit 4; sleep 60"));
  EXPECT_EQ(result.code, 4);
  EXPECT_SAYS(result.error, "lost a peer");
}

// Some supervisors start processes like this; the launcher must reset it to get exit codes.
TEST(Launch, StartedWithSigchldIgnored_StillKnowsHowRanksEnd) {
  const auto result = run_coupler(launch_script(
      1, "trap '' CHLD; exec " COUPLER_BINARY_DIR "/bin/coupler launch -n 1 sh -c 'exit 7'"));
  EXPECT_EQ(result.code, 7) << result.error;
}

TEST(Launch, GrandchildrenLeftBehind_AreEnded_WithTheJob) {
  CouplerRun run(launch_script(2, "sleep 60 & exit 0"));
  EXPECT_EQ(run.wait().code, 0);
  EXPECT_TRUE(run.is_all_gone());
}

TEST(Launch, ProgressBar_CountsAsOneLine_InTheReport) {
  const auto result =
      run_coupler(launch_script(2,
                                "[ $COUPLER_RANK = 1 ] || sleep 60; printf "
                                "'10%%\\r20%%\\r30%%\\nerror here\\n' >&2; exit 1"));
  EXPECT_EQ(result.code, 1);
  EXPECT_SAYS(result.error, "    30%\n    error here\n");
}

}  // namespace
}  // namespace coupler::testing_launch
