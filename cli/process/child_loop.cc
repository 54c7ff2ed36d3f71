#include "cli/process/child_loop.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "cli/process/output_relay.h"

namespace coupler::cli {

InputRelay::InputRelay() {
  if (::isatty(0) == 0) {
    return;
  }
  Pipe pipe = make_output_pipe();
  ::fcntl(pipe.reading.get(), F_SETFL, 0);  // the rank's end blocks; ours does not
  ::fcntl(pipe.writing.get(), F_SETFL, O_NONBLOCK);
  child_end_ = std::move(pipe.reading);
  writing_ = std::move(pipe.writing);
}

bool InputRelay::add_poll(std::vector<pollfd>& entries) const {
  if (!writing_) {
    return false;
  }
  if (!buffer_.empty()) {
    entries.push_back({writing_.get(), POLLOUT, 0});
    return true;
  }
  if (std::chrono::steady_clock::now() < pause_until_) {
    return false;
  }
  entries.push_back({0, POLLIN, 0});
  return true;
}

void InputRelay::pump(const pollfd& entry) {
  if (entry.revents == 0) {
    return;
  }
  if (entry.fd == 0) {
    if (::tcgetpgrp(0) != ::getpgrp()) {
      // In the background, the terminal's input belongs to another program: check again later.
      pause_until_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
      return;
    }
    char text[4096];
    const ssize_t size = ::read(0, text, sizeof text);
    if (size > 0) {
      buffer_.assign(text, static_cast<size_t>(size));
    } else if (size == 0 || errno != EINTR) {
      writing_.reset();  // passes the end of file on to the rank
    }
    return;
  }
  const ssize_t size = ::write(writing_.get(), buffer_.data(), buffer_.size());
  if (size >= 0) {
    buffer_.erase(0, static_cast<size_t>(size));
  } else if (errno != EAGAIN && errno != EINTR) {
    writing_.reset();  // rank 0 has stopped reading
  }
}

namespace {

constexpr std::array kHandled = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP};

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kHandled) {
    sigaddset(&set, signal);
  }
  return set;
}

}  // namespace

ChildLoop::ChildLoop(const std::string& folder) : guard_(folder) {
  auto set = handled_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, &previous_mask_);
  ::signal(SIGPIPE, SIG_IGN);
  signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  null_.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!signals_ || !null_) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot prepare to start processes: {}", errno_message()));
  }
}

ChildLoop::~ChildLoop() {
  guard_.signal_members(SIGKILL);
  entries_.clear();  // reaps them
  ::pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
}

size_t ChildLoop::start(ChildCommand command, const Output& output, bool gets_input) {
  Pipe out;
  Pipe error = make_output_pipe();
  UniqueFd error_log = open_log(output.log);
  UniqueFd out_log = open_log(output.log);
  if (output.is_relayed()) {
    out = make_output_pipe();
    command.standard_output = out.writing.get();
  }
  command.standard_error = error.writing.get();
  command.standard_input = gets_input ? input_.child_end() : null_.get();
  command.group = guard_.group();
  command.signal_mask = previous_mask_;
  entries_.push_back({ChildProcess(command), std::nullopt, std::nullopt});
  Entry& entry = entries_.back();
  entry.error.emplace(std::move(error.reading), 2, output.prefix, std::move(error_log));
  if (out.reading) {
    entry.output.emplace(std::move(out.reading), 1, output.prefix, std::move(out_log));
  }
  if (gets_input) {
    input_.release_child_end();
  }
  // Watched before it may run: a child that ended earlier would be reported out of order.
  ends_.add(entries_.size() - 1, entry.process.end_fd());
  entry.process.let_go();
  ++running_;
  return entries_.size() - 1;
}

void ChildLoop::check_started(const std::string& program) {
  for (Entry& entry : entries_) {
    if (const int failure = entry.process.exec_failure(); failure != 0) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("cannot start the program '{}': {}", program,
                              std::generic_category().message(failure)),
                  {.subject = program,
                   .hint = failure == ENOEXEC
                               ? "the file is not an executable for this machine, or is a script "
                                 "without a #! line"
                               : "check the program's file and, for a script, its #! line"});
    }
  }
}

ChildLoop::Events ChildLoop::wait(std::optional<Deadline> deadline, int wake_fd) {
  constexpr size_t kFirst = 3;  // index of the first entry's descriptors
  std::vector<pollfd> polled = {
      {signals_.get(), POLLIN, 0}, {wake_fd, POLLIN, 0}, {ends_.fd(), POLLIN, 0}};
  for (const Entry& entry : entries_) {
    // poll skips negative descriptors, so every entry keeps its two places.
    polled.push_back({entry.output ? entry.output->fd() : -1, POLLIN, 0});
    polled.push_back({entry.error ? entry.error->fd() : -1, POLLIN, 0});
  }
  const bool relays_input = input_.add_poll(polled);
  int timeout = deadline ? poll_timeout(*deadline) : -1;
  if (!relays_input && timeout < 0) {
    timeout = 1000;  // then check whether the terminal is ours again
  }
  const int ready = ::poll(polled.data(), polled.size(), timeout);
  Events events;
  if (ready <= 0) {
    return events;
  }
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    events.signals.push_back(static_cast<int>(info.ssi_signo));
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (polled[kFirst + 2 * i].revents != 0) {
      entry.output->pump();
    }
    if (polled[kFirst + 2 * i + 1].revents != 0) {
      entry.error->pump();
    }
  }
  if (polled[2].revents != 0) {
    take_ended(events);
  }
  if (relays_input) {
    input_.pump(polled.back());
  }
  return events;
}

void ChildLoop::take_ended(Events& events) {
  for (const size_t child : ends_.take()) {
    Entry& entry = entries_[child];
    --running_;
    events.ended.push_back({child, entry.process.reap()});
    entry.error->pump();  // its last output, before its end is reported
  }
}

std::deque<std::string> ChildLoop::last_lines(size_t index) const {
  return entries_[index].error->tail().lines();
}

void ChildLoop::suspend() {
  guard_.signal_members(SIGTSTP);
  ::raise(SIGSTOP);
  guard_.signal_members(SIGCONT);
}

void ChildLoop::finish_output() {
  for (Entry& entry : entries_) {
    if (entry.output) {
      entry.output->finish();
    }
    entry.error->finish();
  }
}

}  // namespace coupler::cli
