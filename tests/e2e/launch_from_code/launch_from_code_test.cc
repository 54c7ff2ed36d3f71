// Training that a program starts by itself: what goes in, what comes back, and what is said of
// ranks that fail.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "run_program.h"

namespace coupler {
namespace {

class LaunchFromCode : public ::testing::Test {
 protected:
  Outcome launching(const std::string& what, const std::string& more = "") const {
    // Temporary files are the test's own, so that it sees what is left of them.
    std::vector<std::string> arguments{what};
    if (!more.empty()) arguments.push_back(more);
    return here_.run(LAUNCHING, arguments, {{"TMPDIR", here_.path().string()}});
  }
  void expect_clean() const {
    for (const auto& entry : std::filesystem::directory_iterator(here_.path()))
      EXPECT_FALSE(has(entry.path().filename().string(), "coupler-call")) << entry.path();
  }
  // Of a launch that failed: the message, which names all of these.
  void expect_error(const std::string& what, const std::vector<std::string>& parts) const {
    const Outcome outcome = launching(what);
    EXPECT_EQ(outcome.exit_code, 1) << outcome.out << outcome.err;
    for (const std::string& part : parts)
      EXPECT_TRUE(has(outcome.out, part)) << part << " is not in\n" << outcome.out << outcome.err;
    expect_clean();
  }

  Workplace here_;
};

TEST_F(LaunchFromCode, Results_AreRankZeros_AsOftenAsOneLikes) {
  const Outcome outcome = launching("add_up");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(has(outcome.out, "Launching training on 2 processes.\n")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "sum = 33 on 2\n")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "again = 66 on 2\n")) << outcome.out;
  expect_clean();
}

TEST_F(LaunchFromCode, ByName_OfAnotherProgram) {
  const Outcome outcome = launching("by_name", LAUNCHING);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(has(outcome.out, "named = 33 on 2\n")) << outcome.out;
}

TEST_F(LaunchFromCode, AFunctionWithoutResult_OnOneProcess) {
  const Outcome outcome = launching("nothing");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(has(outcome.out, "Launching training on 1 process.\n")) << outcome.out;
}

TEST_F(LaunchFromCode, AConfiguration_IsRead) {
  here_.write("two.toml", "[backend]\nuse = \"gloo_cpu\"\n");
  const Outcome outcome = launching("config", "two.toml");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(has(outcome.out, "sum = 13 on 2\n")) << outcome.out;
  here_.write("two.toml", "[backend]\nuse = 3\n");
  EXPECT_TRUE(has(launching("config", "two.toml").out, "`coupler launch` ended with 2"));
}

TEST_F(LaunchFromCode, AnErrorOfARank_IsRethrownWithItsRank) {
  expect_error("error", {"rank 1: invalid argument", "rank 1: the data is wrong", "mend the data"});
  expect_error("exception", {"rank 1: aborted", "rank 1: fail threw", "out of luck"});
}

TEST_F(LaunchFromCode, ARankThatIsKilled_IsNamed) {
  expect_error("kill", {"rank 1: peer lost", "rank 1 was killed by signal 9"});
}

TEST_F(LaunchFromCode, WhatIsNotRegistered_IsRefusedWithTheFix) {
  expect_error("forgotten", {"is not registered", "const coupler::Launchable"});
  expect_error("unknown", {"no function is registered as 'ad_up' (did you mean 'add_up'?)",
                           "add_up, fail, inherited, leave, nested"});
}

TEST_F(LaunchFromCode, ArgumentsOfOtherTypes_AreRefusedByTheRank) {
  expect_error("wrong_types", {"mismatch", "launch: what came from rank 0 is no valid object"});
}

TEST_F(LaunchFromCode, WithinARank_IsRefused) {
  expect_error("nested", {"this process is a rank of a job already"});
}

TEST_F(LaunchFromCode, NoProcesses_AreRefused) { expect_error("none", {"processes is 0"}); }

TEST_F(LaunchFromCode, NaN_ComesBack) {
  const Outcome outcome = launching("no_number");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(has(outcome.out, "nan")) << outcome.out;
}

TEST_F(LaunchFromCode, AMainThatDoesNotEnter_IsToldTo) {
  const Outcome outcome = here_.run(LAUNCHING_WITHOUT_ENTERING, {});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out << outcome.err;
  EXPECT_TRUE(has(outcome.out, "call coupler::enter_launched() first in")) << outcome.out;
}

TEST_F(LaunchFromCode, OpenFilesAndBlockedSignals_StayWithTheProgram) {
  const Outcome outcome = launching("inherited", here_.path() / "kept");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_FALSE(has(outcome.out, "inherited: ")) << outcome.out;
}

TEST_F(LaunchFromCode, AProgramThatIgnoresItsChildren_GetsResultsAndErrors) {
  const Outcome outcome = launching("ignoring_children");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out << outcome.err;
  EXPECT_TRUE(has(outcome.out, "sum = 33 on 2\n")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "rank 1: the data is wrong")) << outcome.out;
}

TEST_F(LaunchFromCode, ArgumentsOfAnyBytes_ComeBackTheSame) {
  EXPECT_TRUE(has(launching("odd_bytes").out, "the same\n"));
}

TEST_F(LaunchFromCode, SeveralAtOnce_EachHasItsOwnResult) {
  const Outcome outcome = launching("at_once");
  EXPECT_TRUE(has(outcome.out, "result 0\nresult 1\nresult 2\n")) << outcome.out << outcome.err;
  expect_clean();
}

TEST_F(LaunchFromCode, AFunctionThatEndsItsProcess_IsToldToReturn) {
  expect_error("leave", {"ended without having returned from leave"});
}

TEST_F(LaunchFromCode, AProgramWhoseFileWasRemoved_SaysSo) {
  const std::string copy = here_.path() / "removed";
  std::filesystem::copy_file(LAUNCHING, copy);
  const Outcome outcome = here_.run(copy, {"removed", copy});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out << outcome.err;
  EXPECT_TRUE(has(outcome.out, "was replaced or removed since it began: " + copy)) << outcome.out;
}

// Neither ranks nor launcher outlive the program that launched them.
TEST_F(LaunchFromCode, AProgramThatIsKilled_TakesItsRanksAlong) {
  const std::string folder = here_.path();
  std::string arguments[] = {LAUNCHING, "sleep_long", folder};
  char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  pid_t pid = -1;
  ASSERT_EQ(posix_spawn(&pid, LAUNCHING, nullptr, nullptr, argv, environ), 0);
  std::vector<pid_t> ranks;
  for (int waited = 0; ranks.size() < 2 && waited < 600; ++waited) {
    ranks.clear();
    for (int rank = 0; rank < 2; ++rank) {
      pid_t found = 0;
      if (std::ifstream(folder + "/pid-" + std::to_string(rank)) >> found) ranks.push_back(found);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ASSERT_EQ(ranks.size(), 2u);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  for (const pid_t rank : ranks) {
    bool gone = false;
    for (int waited = 0; !gone && waited < 300; ++waited) {
      gone = kill(rank, 0) != 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    EXPECT_TRUE(gone) << rank << " is still there";
    if (!gone) kill(rank, SIGKILL);
  }
}

TEST_F(LaunchFromCode, TheExample_PrintsTheAccuracyOfEachEpoch) {
  const Outcome outcome = here_.run(LAUNCH_FROM_CODE, {"2", "3"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(has(outcome.out, "Launching training on 2 processes.\nepoch 0: accuracy "))
      << outcome.out;
  const size_t at = outcome.out.find("accuracy: 0.");
  ASSERT_NE(at, std::string::npos) << outcome.out;
  EXPECT_GT(std::strtod(outcome.out.c_str() + at + 10, nullptr), 0.8);
}

}  // namespace
}  // namespace coupler
