#include "cli/process/child_process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <vector>

#include "cli/process/capture_output.h"
#include "cli/process/exit_watch.h"

namespace coupler::cli {
namespace {

constexpr int kPatience = 20000;  // ms

ChildProcess shell(const char* script) {
  ChildCommand command;
  command.path = "/bin/sh";
  command.arguments = {"sh", "-c", script};
  sigemptyset(&command.signal_mask);
  return ChildProcess(command);
}

bool ends(const ChildProcess& child, int patience) {
  pollfd end = {child.end_fd(), POLLIN, 0};
  return ::poll(&end, 1, patience) == 1;
}

TEST(ChildProcess, BeforeItIsLetGo_DoesNotBegin) {
  ChildProcess child = shell("exit 3");
  EXPECT_FALSE(ends(child, 100));
  child.let_go();
  ASSERT_TRUE(ends(child, kPatience));
  EXPECT_EQ(WEXITSTATUS(child.reap()), 3);
}

TEST(ChildProcess, ThatIsNeverLetGo_IsKilled) {
  pid_t pid = 0;
  {
    const ChildProcess child = shell("exit 3");
    pid = child.pid();
  }
  EXPECT_EQ(::kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

// Started one after another, so that the first may exit before the second is watched.
TEST(ChildProcess, WatchedBeforeTheyAreLetGo_EndInTheirOrder) {
  for (int round = 0; round < 20; ++round) {
    ChildProcess first = shell("exit 0"), second = shell("exit 0");
    ExitWatch watch;
    watch.add(1, second.end_fd());
    watch.add(0, first.end_fd());
    first.let_go();
    ASSERT_TRUE(ends(first, kPatience));
    second.let_go();
    ASSERT_TRUE(ends(second, kPatience));
    EXPECT_EQ(watch.take(), (std::vector<size_t>{0, 1}));
  }
}

TEST(Words, Argv_EndsWithNull) {
  const std::vector<std::string> words = {"launch", "-n", "2"};
  const std::vector<char*> argv = argv_of(words);
  ASSERT_EQ(argv.size(), 4u);
  for (size_t i = 0; i < words.size(); ++i) EXPECT_STREQ(argv[i], words[i].c_str());
  EXPECT_EQ(argv[3], nullptr);
}

}  // namespace
}  // namespace coupler::cli
