#include "process_guard.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <system_error>

namespace coupler::cli {
namespace {

// After fork: only calls that are safe there.
[[noreturn]] void guard_group(int lifeline) {
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
  ::kill(0, SIGKILL);
  ::_exit(0);
}

}  // namespace

ProcessGuard::ProcessGuard() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot make a pipe: {}", std::generic_category().message(errno)));
  }
  const UniqueFd reading(ends[0]);
  lifeline_.reset(ends[1]);
  leader_ = ::fork();
  if (leader_ < 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot make a process: {}", std::generic_category().message(errno)));
  }
  if (leader_ == 0) {
    guard_group(ends[0]);
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
