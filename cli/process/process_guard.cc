#include "cli/process/process_guard.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/process.h"
#include "base/socket.h"
#include "cli/process/child_process.h"
#include "cli/process/folder_use.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// Killed processes are gone in milliseconds; those that hang in the kernel no longer write.
constexpr auto kDyingTime = 1s;
// How long to wait for a folder's other users, in seconds: if it is used longer, its launcher
// lives.
constexpr unsigned kOthersTime = 10;
constexpr auto kReleaseTime = 1s;

// An ended process no longer counts, even if not reaped yet: its new parent may take seconds.
bool is_living_member(pid_t process, pid_t group) {
  if (process <= 0 || ::getpgid(process) != group) {
    return false;
  }
  const char state = status_of(process).state;
  return state != 0 && state != 'Z' && state != 'X';
}

bool has_members(pid_t group) {
  std::error_code gone;  // processes may end meanwhile
  for (fs::directory_iterator entry("/proc", gone), end; !gone && entry != end;
       entry.increment(gone)) {
    if (is_living_member(std::atoi(entry->path().filename().c_str()), group)) {
      return true;
    }
  }
  return false;
}

// Runs in its own process, outside the group. Ranks under mpirun die some milliseconds after it and
// may create files in the folder until then.
[[noreturn]] void remove_left_files(pid_t group, const UniqueFd& use, const std::string& folder) {
  const auto deadline = deadline_after(kDyingTime);
  while (has_members(group) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(2ms);
  }
  ::signal(SIGALRM, SIG_DFL);  // ends us
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  ::sigprocmask(SIG_UNBLOCK, &alarm, nullptr);
  ::alarm(kOthersTime);
  if (is_last_user(use, WaitMode::kWait)) {
    std::error_code ignored;  // cannot be reported here; the next launcher tries again
    fs::remove_all(folder, ignored);
  }
  ::_exit(0);
}

// Runs after the fork of a single-threaded process.
[[noreturn]] void guard_group(int lifeline, int folder_use, const std::string& folder) {
  ::setpgid(0, 0);
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_NAME, "coupler-guard");
  ::dup2(lifeline, 0);
  if (folder_use >= 0) ::dup2(folder_use, 1);
  // The guard must not keep anyone's pipe open.
  ::close_range(folder_use >= 0 ? 2 : 1, ~0U, 0);
  char byte = 0;
  while (::read(0, &byte, 1) < 0 && errno == EINTR) {
  }
  // The launcher may have made the folder after the fork.
  const UniqueFd use = folder_use >= 0 ? UniqueFd(1) : use_folder(folder);
  if (use) {
    const pid_t group = ::getpid();
    const pid_t remover = ::fork();
    if (remover == 0) {
      ::setpgid(0, 0);
      remove_left_files(group, use, folder);
    }
    if (remover > 0) ::setpgid(remover, remover);  // both sides: must not be killed with the group
  }
  ::kill(0, SIGKILL);
  ::_exit(0);
}

}  // namespace

ProcessGuard::ProcessGuard(const std::string& folder) {
  Pipe lifeline = make_pipe();
  lifeline_ = std::move(lifeline.writing);
  // Before the guard exists, and so before any process it guards writes there.
  const UniqueFd folder_use = folder.empty() ? UniqueFd() : use_folder(folder);
  leader_ = ::fork();
  if (leader_ < 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot create a process: {}", errno_message()));
  }
  if (leader_ == 0) {
    guard_group(lifeline.reading.get(), folder_use.get(), folder);
  }
  ::setpgid(leader_, leader_);  // both sides do it, as members may join at once
}

ProcessGuard::~ProcessGuard() {
  if (leader_ > 0) {
    signal_members(SIGKILL);
    reap();
  }
}

void ProcessGuard::signal_members(int signal) const {
  if (leader_ > 0) {
    ::kill(-leader_, signal);
  }
}

void ProcessGuard::release() {
  if (leader_ < 0) {
    return;
  }
  lifeline_.reset();
  // The guard kills itself with the group, unless it was stopped (SIGSTOP).
  const auto deadline = deadline_after(kReleaseTime);
  int status = 0;
  while (::waitpid(leader_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= deadline) {
      signal_members(SIGKILL);
      reap();
      return;
    }
    std::this_thread::sleep_for(100us);
  }
  leader_ = -1;
}

void ProcessGuard::reap() {
  int status = 0;
  while (::waitpid(leader_, &status, 0) < 0 && errno == EINTR) {
  }
  leader_ = -1;
}

}  // namespace coupler::cli
