#include "cli/config/question_input.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace coupler::cli {
namespace {

constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr int kRedrawing[] = {SIGWINCH, SIGCONT};

bool is_redrawing(uint32_t signal) { return signal == SIGWINCH || signal == SIGCONT; }

[[noreturn]] void fail_system(const char* action) {
  throw Error(ErrorCode::kIo, fmt::format("cannot {}: {}", action, std::strerror(errno)),
              {.subject = "standard input",
               .hint = "`coupler config default` writes a configuration without questions"});
}

}  // namespace

QuestionInput::QuestionInput() {
  sigset_t watched;
  sigemptyset(&watched);
  for (const int signal : kEnding) sigaddset(&watched, signal);
  for (const int signal : kRedrawing) sigaddset(&watched, signal);
  sigprocmask(SIG_BLOCK, &watched, &before_);
  signals_ = UniqueFd(::signalfd(-1, &watched, SFD_CLOEXEC));
  if (signals_) return;
  sigprocmask(SIG_SETMASK, &before_, nullptr);
  fail_system("watch for signals");
}

QuestionInput::~QuestionInput() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

QuestionInput::Event QuestionInput::next(int milliseconds) {
  using Kind = Event::Kind;
  while (given_ == ready_.size()) {
    pollfd sources[] = {{signals_.get(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    const int count = ::poll(sources, 2, milliseconds);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_system("wait for an answer");
    if (count == 0) return {.kind = Kind::kNothing};
    signalfd_siginfo info{};
    if ((sources[0].revents & POLLIN) != 0 &&
        ::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      if (is_redrawing(info.ssi_signo)) return {.kind = Kind::kRedraw};
      return {.kind = Kind::kSignal, .signal = static_cast<int>(info.ssi_signo)};
    }
    if (sources[1].revents == 0) continue;
    char block[4096];
    const ssize_t got = ::read(STDIN_FILENO, block, sizeof block);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return {.kind = Kind::kEnd};  // also if the terminal is gone
    ready_.assign(block, static_cast<size_t>(got));
    given_ = 0;
  }
  return {.kind = Kind::kByte, .byte = ready_[given_++]};
}

}  // namespace coupler::cli
