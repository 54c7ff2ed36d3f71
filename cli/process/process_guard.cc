#include "cli/process/process_guard.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "cli/process/pipe.h"

namespace coupler::cli {
namespace {

// In a process of its own, outside of the group. Ranks below mpirun follow it into death some
// milliseconds later, and may make files until then.
[[noreturn]] void remove_behind(const std::string& folder) {
  for (int round = 0; round < 10; ++round) {
    std::error_code ignored;  // something was made in it meanwhile: the next round's
    std::filesystem::remove_all(folder, ignored);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::_exit(0);
}

// After the fork of a process with one thread.
[[noreturn]] void guard_group(int lifeline, const std::string& folder) {
  ::setpgid(0, 0);
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_NAME, "coupler-guard");
  ::dup2(lifeline, 0);
  // Nobody's pipe may stay open because of the guard.
  ::close_range(1, ~0U, 0);
  char byte = 0;
  while (::read(0, &byte, 1) < 0 && errno == EINTR) {
  }
  if (!folder.empty()) {
    const pid_t remover = ::fork();
    if (remover == 0) {
      ::setpgid(0, 0);
      remove_behind(folder);
    }
    if (remover > 0) ::setpgid(remover, remover);  // both: it must not be killed with the group
  }
  ::kill(0, SIGKILL);
  ::_exit(0);
}

}  // namespace

ProcessGuard::ProcessGuard(const std::string& folder) {
  Pipe lifeline = make_pipe();
  lifeline_ = std::move(lifeline.writing);
  leader_ = ::fork();
  if (leader_ < 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot make a process: {}", std::generic_category().message(errno)));
  }
  if (leader_ == 0) {
    guard_group(lifeline.reading.get(), folder);
  }
  ::setpgid(leader_, leader_);  // both sides do it: members may join at once
}

ProcessGuard::~ProcessGuard() {
  ::kill(-leader_, SIGKILL);
  int status = 0;
  while (::waitpid(leader_, &status, 0) < 0 && errno == EINTR) {
  }
}

void ProcessGuard::signal_members(int signal) const { ::kill(-leader_, signal); }

}  // namespace coupler::cli
