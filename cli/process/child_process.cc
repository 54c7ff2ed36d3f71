#include "cli/process/child_process.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "cli/process/capture_output.h"

namespace coupler::cli {

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot create a pipe: {}", errno_message()),
                {.subject = "pipe", .hint = "check the limit on open files (ulimit -n)"});
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

namespace {

// Runs after fork: only async-signal-safe calls.
[[noreturn]] void exec_program(const ChildCommand& command, char* const* arguments,
                               char* const* environment, const cpu_set_t& cpus, pid_t parent,
                               int sync_pipe, int result) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(1);  // the parent died before the line above took effect
  }
  ::setpgid(0, command.group);
  if (!command.cpus.empty()) {
    ::sched_setaffinity(0, sizeof cpus, &cpus);  // a subset of ours, so it does not fail
  }
  ::dup2(command.standard_input, 0);
  ::dup2(command.standard_output, 1);
  ::dup2(command.standard_error, 2);
  ::signal(SIGPIPE, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &command.signal_mask, nullptr);
  char go = 0;
  while (::read(sync_pipe, &go, 1) < 0 && errno == EINTR) {
  }
  ::execve(command.path.c_str(), arguments, environment);
  const int failure = errno;
  (void)!::write(result, &failure, sizeof failure);  // fails if the parent is gone
  ::_exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const ChildCommand& command) {
  const auto arguments = argv_of(command.arguments);
  const auto environment = argv_of(command.environment);
  const pid_t parent = ::getpid();
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (const int cpu : command.cpus) {
    CPU_SET(cpu, &cpus);
  }
  Pipe result = make_pipe(), sync_pipe = make_pipe();
  exec_result_ = std::move(result.reading);
  waiting_ = std::move(sync_pipe.reading);
  sync_pipe_ = std::move(sync_pipe.writing);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(sync_pipe_.get());
    exec_program(command, arguments.data(), environment.data(), cpus, parent, waiting_.get(),
                 result.writing.get());
  }
  if (pid_ > 0) {
    pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  }
  if (pid_ < 0 || !pidfd_) {
    const int failure = errno;
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    reaped_ = true;
    throw Error(
        ErrorCode::kIo,
        fmt::format("cannot start {}: {}", command.path, std::generic_category().message(failure)),
        {.subject = command.path,
         .hint = "check the limits on processes and open files (ulimit -a)"});
  }
  ::setpgid(pid_, command.group);  // both sides do it, as signals to the group may follow at once
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      reaped_(std::exchange(other.reaped_, true)),
      pidfd_(std::move(other.pidfd_)),
      exec_result_(std::move(other.exec_result_)),
      waiting_(std::move(other.waiting_)),
      sync_pipe_(std::move(other.sync_pipe_)) {}

ChildProcess::~ChildProcess() {
  if (!reaped_) {
    signal(SIGKILL);
    reap();
  }
}

// Writes a byte, as closing is not enough: other waiting children also have the pipe open.
void ChildProcess::let_go() {
  const char go = 1;
  while (::write(sync_pipe_.get(), &go, 1) < 0 && errno == EINTR) {
  }
  sync_pipe_.reset();
  waiting_.reset();
}

int ChildProcess::exec_failure() {
  int failure = 0;
  ssize_t size = 0;
  do {
    size = ::read(exec_result_.get(), &failure, sizeof failure);
  } while (size < 0 && errno == EINTR);
  exec_result_.reset();
  return size == static_cast<ssize_t>(sizeof failure) ? failure : 0;
}

void ChildProcess::signal(int number) const {
  if (!reaped_) {
    ::syscall(SYS_pidfd_send_signal, pidfd_.get(), number, nullptr, 0);
  }
}

int ChildProcess::reap() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
  return status;
}

}  // namespace coupler::cli
