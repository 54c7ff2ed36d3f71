// The folder that a group's members use: removed with its last user, and not before.
#include "cli/process/process_guard.h"

#include <gtest/gtest.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "cli/process/folder_use.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kGuardPatience = 20s;
constexpr auto kWhile = 200ms;  // long enough for a wrong removal to happen

bool becomes(const std::function<bool()>& so) {
  const auto deadline = std::chrono::steady_clock::now() + kGuardPatience;
  while (!so() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(1ms);
  }
  return so();
}

class ProcessGuardTest : public ::testing::Test {
 protected:
  ProcessGuardTest() {
    char name[] = "/tmp/coupler-guard-test-XXXXXX";
    folder_ = ::mkdtemp(name);
    fs::create_directory(folder_ + "/below");
    std::ofstream(folder_ + "/below/file") << "text";
  }
  ~ProcessGuardTest() override { fs::remove_all(folder_); }

  bool is_gone() const { return !fs::exists(folder_); }

  // A launcher with a guard and a member, which both outlive it unless they are killed.
  pid_t start_launcher() {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t launcher = ::fork();
    if (launcher == 0) {
      const ProcessGuard guard(folder_);
      const pid_t member = ::fork();
      if (member == 0) {
        ::setpgid(0, guard.group());
        ::dup2(ready[1], 0);
        ::close_range(1, ~0U, 0);  // as exec does: the launcher's lifeline is not ours
        for (char go = 1;; ::pause()) (void)!::write(0, &go, 1);
      }
      ::pause();
    }
    ::close(ready[1]);
    members_end_.reset(ready[0]);
    char go = 0;
    EXPECT_EQ(::read(ready[0], &go, 1), 1);
    return launcher;
  }

  // The launcher and its member hold the other end.
  bool members_are_gone() const {
    pollfd end = {members_end_.get(), POLLIN, 0};
    char more = 0;
    return ::poll(&end, 1, static_cast<int>(std::chrono::milliseconds(kGuardPatience).count())) ==
               1 &&
           ::read(members_end_.get(), &more, 1) == 0;
  }

  std::string folder_;
  UniqueFd members_end_;
};

TEST_F(ProcessGuardTest, LauncherKilled_FolderIsRemovedWithTheGroup) {
  const pid_t launcher = start_launcher();
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  EXPECT_TRUE(members_are_gone());
  EXPECT_TRUE(becomes([&] { return is_gone(); }));
}

// The launcher's guard is started before the folder is made, so that no moment is without one.
TEST_F(ProcessGuardTest, FolderMadeAfterTheGuard_IsRemovedWithTheGroup) {
  const std::string made_later = folder_ + "-later";
  fs::rename(folder_, made_later);
  const pid_t launcher = start_launcher();
  fs::rename(made_later, folder_);
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  EXPECT_TRUE(members_are_gone());
  EXPECT_TRUE(becomes([&] { return is_gone(); }));
}

TEST_F(ProcessGuardTest, FolderThatOthersUse_IsRemovedAfterThem) {
  UniqueFd other = use_folder(folder_);
  ASSERT_TRUE(other);
  const pid_t launcher = start_launcher();
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  EXPECT_TRUE(members_are_gone());
  std::this_thread::sleep_for(kWhile);
  EXPECT_TRUE(fs::exists(folder_ + "/below/file"));
  other.reset();
  EXPECT_TRUE(becomes([&] { return is_gone(); }));
}

TEST_F(ProcessGuardTest, OfTwoGuards_TheLastRemovesIt) {
  const pid_t first = start_launcher();
  const pid_t second = start_launcher();
  ::kill(first, SIGKILL);
  ::waitpid(first, nullptr, 0);
  std::this_thread::sleep_for(kWhile);
  EXPECT_TRUE(fs::exists(folder_ + "/below/file"));
  ::kill(second, SIGKILL);
  ::waitpid(second, nullptr, 0);
  EXPECT_TRUE(becomes([&] { return is_gone(); }));
}

TEST_F(ProcessGuardTest, GuardThatIsDestroyed_LeavesTheFolder) {
  { const ProcessGuard guard(folder_); }
  std::this_thread::sleep_for(kWhile);
  EXPECT_TRUE(fs::exists(folder_ + "/below/file"));
  EXPECT_TRUE(is_last_user(use_folder(folder_), WaitMode::kLook));
}

TEST_F(ProcessGuardTest, Release_KillsTheGroupAndRemovesTheFolder) {
  ProcessGuard guard(folder_);
  const pid_t member = ::fork();
  if (member == 0) {
    ::setpgid(0, guard.group());
    ::close_range(0, ~0U, 0);
    while (true) ::pause();
  }
  ::setpgid(member, guard.group());
  guard.release();
  int status = 0;
  ASSERT_EQ(::waitpid(member, &status, 0), member);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(becomes([&] { return is_gone(); }));
  guard.signal_members(SIGKILL);  // no members are left, least of all this process
}

TEST_F(ProcessGuardTest, ReleaseOfAStoppedGuard_EndsAllTheSame) {
  ProcessGuard guard(folder_);
  const pid_t group = guard.group();
  ::kill(group, SIGSTOP);
  guard.release();
  EXPECT_EQ(::kill(-group, 0), -1);
}

// By then the path may belong to another folder, for example after a restart of the job.
TEST_F(ProcessGuardTest, FolderMadeAnew_IsNobodyElses) {
  const UniqueFd before = use_folder(folder_);
  fs::remove_all(folder_);
  fs::create_directory(folder_);
  EXPECT_FALSE(is_last_user(before, WaitMode::kLook));
}

TEST_F(ProcessGuardTest, LinkOrFile_IsNoFolderToUse) {
  fs::create_symlink(folder_ + "/below", folder_ + "/link");
  EXPECT_FALSE(use_folder(folder_ + "/link"));
  EXPECT_FALSE(use_folder(folder_ + "/below/file"));
  EXPECT_FALSE(use_folder(folder_ + "/nothing"));
}

}  // namespace
}  // namespace coupler::cli
