#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/subprocess.h"
#include "core/plugin/folder.h"

namespace coupler::test {
namespace {

using End = ChildResult::End;
constexpr std::chrono::seconds kLong(60);

TEST(ChildAnswers, Works_AnswerInTheirOrder) {
  std::vector<std::function<std::string()>> works;
  for (int i = 0; i < 40; ++i) {
    works.emplace_back([i] {
      usleep(static_cast<useconds_t>(1000 * (40 - i)));
      return std::to_string(i) + std::string(100000, 'x');  // more than the capacity of a pipe
    });
  }
  const std::vector<ChildResult> answers = run_in_children(works, kLong);
  ASSERT_EQ(answers.size(), works.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].end, End::kAnswered);
    EXPECT_EQ(answers[i].text, std::to_string(i) + std::string(100000, 'x'));
  }
}

TEST(ChildAnswers, BadWorks_CostTheirAnswersOnly) {
  const std::vector<ChildResult> answers = run_in_children(
      {[]() -> std::string {
         raise(SIGKILL);
         return "";
       },
       []() -> std::string {
         std::fputs("coupler: error: no such thing\n", stderr);
         _exit(3);
       },
       [] { return std::string("zero\0byte\n", 10); }, []() -> std::string { exit(0); }},
      kLong);
  EXPECT_EQ(answers[0].end, End::kSignal);
  EXPECT_EQ(answers[0].number, SIGKILL);
  EXPECT_EQ(answers[1].end, End::kExit);
  EXPECT_EQ(answers[1].number, 3);
  EXPECT_EQ(answers[1].words, "no such thing");
  EXPECT_EQ(answers[2].text, std::string("zero\0byte\n", 10));
  EXPECT_EQ(answers[3].end, End::kExit) << "exiting without an answer is a failure";
  EXPECT_EQ(describe_exit(answers[0], kLong), "crashed: signal 9 (Killed)");
  EXPECT_EQ(describe_exit(answers[1], kLong, "while being asked"),
            "ended the process with exit code 3 while being asked: no such thing");
}

TEST(ChildAnswers, WorkThatHangs_IsStopped) {
  const std::vector<ChildResult> answers = run_in_children({[]() -> std::string {
                                                              for (;;) pause();
                                                            },
                                                            [] { return std::string("here"); }},
                                                           std::chrono::seconds(1));
  EXPECT_EQ(answers[0].end, End::kLate);
  EXPECT_EQ(describe_exit(answers[0], kLong, "while hanging"),
            "was stopped after 60 s while hanging");
  EXPECT_EQ(answers[1].text, "here");
}

TEST(ChildAnswers, LeavingByExit_RunsWhatWasRegistered) {
  const Folder folder;
  static std::string file;
  file = folder.path("left");
  const auto work = [] {
    std::atexit([] { std::ofstream(file) << "bye"; });
    return std::string("answer");
  };
  EXPECT_EQ(run_in_children({work}, kLong)[0].text, "answer");
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_EQ(run_in_children({work}, kLong, Leave::kByExit)[0].text, "answer");
  EXPECT_TRUE(std::filesystem::exists(file))
      << "an answer is returned only after its child has exited";
}

}  // namespace
}  // namespace coupler::test
