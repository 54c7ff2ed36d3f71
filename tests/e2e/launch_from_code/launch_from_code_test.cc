// Training that a program starts itself: arguments, results, and the errors of failing ranks.
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
    // The test has its own folder for temporary files, so that it sees leftovers.
    std::vector<std::string> arguments{what};
    if (!more.empty()) arguments.push_back(more);
    return here_.run(LAUNCHING, arguments, {{"TMPDIR", here_.path().string()}});
  }
  void expect_clean() const {
    for (const auto& entry : std::filesystem::directory_iterator(here_.path()))
      EXPECT_FALSE(has(entry.path().filename().string(), "coupler-")) << entry.path();
  }
  // Expects a failed launch whose message contains all parts.
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
  EXPECT_TRUE(has(launching("config", "two.toml").out, "`coupler launch` exited with 2"));
}

TEST_F(LaunchFromCode, AnErrorOfARank_IsRethrownWithItsRank) {
  expect_error("error", {"rank 1: invalid argument", "rank 1: the data is wrong", "fix the data"});
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
  expect_error("wrong_types", {"mismatch", "launch: the data from rank 0 is not a valid object"});
}

TEST_F(LaunchFromCode, WithinARank_IsRefused) {
  expect_error("nested", {"this process is already a rank of a job"});
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

// Output to a closed standard output is lost, and does not end up in a file of the call.
TEST_F(LaunchFromCode, AProgramWithoutStandardFiles_GetsItsResult) {
  const Outcome outcome = launching("without_standard_files", here_.path() / "result");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(text_of(here_.path() / "result"), "came back");
}

TEST_F(LaunchFromCode, AFunctionThatEndsItsProcess_IsToldToReturn) {
  expect_error("leave", {"exited without returning from leave"});
}

TEST_F(LaunchFromCode, AProgramWhoseFileWasRemoved_SaysSo) {
  const std::string copy = here_.path() / "removed";
  std::filesystem::copy_file(LAUNCHING, copy);
  const Outcome outcome = here_.run(copy, {"removed", copy});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out << outcome.err;
  EXPECT_TRUE(has(outcome.out, "was replaced or removed since it started: " + copy)) << outcome.out;
}

struct Ending {
  const char* name;
  int signal;
  bool whole_group;  // like Ctrl-C in a terminal: the launcher gets the signal too
};

class LaunchFromCodeEnded : public LaunchFromCode, public ::testing::WithParamInterface<Ending> {
 protected:
  // Starts the program in its own process group and waits until both ranks train.
  void start() {
    std::filesystem::create_directory(temporary());
    std::string arguments[] = {LAUNCHING, "sleep_long", here_.path().string()};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
    std::string variables[] = {"PATH=/usr/bin:/bin", "TMPDIR=" + temporary()};
    char* environment[] = {variables[0].data(), variables[1].data(), nullptr};
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const int failed = posix_spawn(&program_, LAUNCHING, nullptr, &attributes, argv, environment);
    posix_spawnattr_destroy(&attributes);
    ASSERT_EQ(failed, 0);
    for (int waited = 0; ranks_.size() < 2 && waited < 600; ++waited) {
      ranks_.clear();
      for (int rank = 0; rank < 2; ++rank) {
        pid_t found = 0;
        if (std::ifstream(here_.path() / ("pid-" + std::to_string(rank))) >> found) {
          ranks_.push_back(found);
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    ASSERT_EQ(ranks_.size(), 2u);
  }
  void TearDown() override {
    if (program_ > 0 && waitpid(program_, nullptr, WNOHANG) == 0) {
      kill(program_, SIGKILL);
      waitpid(program_, nullptr, 0);
    }
  }
  std::string temporary() const { return here_.path() / "temporary"; }

  pid_t program_ = -1;
  std::vector<pid_t> ranks_;
};

// Neither ranks nor launcher nor files outlive the program that launched them.
TEST_P(LaunchFromCodeEnded, TakesItsRanksAlong_AndLeavesNothing) {
  start();
  if (HasFatalFailure()) return;
  kill(GetParam().whole_group ? -program_ : program_, GetParam().signal);
  int status = 0;
  ASSERT_EQ(waitpid(program_, &status, 0), program_);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == GetParam().signal) << status;
  for (const pid_t rank : ranks_) {
    bool gone = false;
    for (int waited = 0; !gone && waited < 300; ++waited) {
      gone = kill(rank, 0) != 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    EXPECT_TRUE(gone) << rank << " still exists";
    if (!gone) kill(rank, SIGKILL);
  }
  for (const auto& entry : std::filesystem::directory_iterator(temporary())) {
    ADD_FAILURE() << entry.path() << " was left behind";
  }
}

INSTANTIATE_TEST_SUITE_P(
    By, LaunchFromCodeEnded,
    ::testing::Values(Ending{"CtrlC", SIGINT, true}, Ending{"Interrupt", SIGINT, false},
                      Ending{"Termination", SIGTERM, false}, Ending{"Kill", SIGKILL, false},
                      Ending{"KillOfTheLauncherToo", SIGKILL, true}),
    [](const ::testing::TestParamInfo<Ending>& ending) { return ending.param.name; });

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
