#include "cli/config/ask.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/text.h"
#include "cli/config/key_list.h"

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

namespace {

constexpr size_t kLongestAnswer = 4096;

[[noreturn]] void fail_answer(const std::string& question, const std::string& problem) {
  throw Error(ErrorCode::kUsage, fmt::format("'{}': {}; nothing was written", question, problem),
              {.subject = question,
               .hint = "`coupler config default` writes a configuration without questions"});
}

}  // namespace

std::string Asker::read_line(const std::string& question) {
  using Kind = QuestionInput::Event::Kind;
  std::string line;
  while (true) {
    const auto event = input_.next();
    if (event.kind == Kind::kSignal) throw Interrupted{event.signal};
    if (event.kind == Kind::kEnd && isatty(STDIN_FILENO) != 0) throw Interrupted{SIGINT};
    if (event.kind == Kind::kEnd && line.empty())
      fail_answer(question, "the answers end before this one");
    if (event.kind == Kind::kEnd || (event.kind == Kind::kByte && event.byte == '\n')) break;
    if (event.kind == Kind::kByte) line += event.byte;
    if (line.size() > kLongestAnswer)
      fail_answer(question, fmt::format("an answer of more than {} bytes", kLongestAnswer));
  }
  const size_t begin = line.find_first_not_of(" \t\r");
  return begin == std::string::npos
             ? ""
             : line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

// At a terminal, the user gets another try.
void Asker::refuse(const std::string& question, const std::string& problem) const {
  if (isatty(STDIN_FILENO) == 0) fail_answer(question, problem.substr(0, problem.rfind('.')));
  write_out(problem + "\n");
}

std::string Asker::choose_in_list(const std::string& question, const std::vector<Choice>& choices,
                                  size_t first) {
  std::string list = question + "\n";
  for (size_t i = 0; i < choices.size(); ++i) {
    list += fmt::format("  {}) {}{}{}\n", i + 1, choices[i].value,
                        choices[i].meaning.empty() ? "" : ": ", choices[i].meaning);
  }
  write_out(list);
  while (true) {
    write_out(fmt::format("number or name [{}]: ", choices[first].value));
    const std::string line = read_line(question);
    if (line.empty()) return choices[first].value;
    for (size_t i = 0; i < choices.size(); ++i) {
      if (line == choices[i].value || line == std::to_string(i + 1)) return choices[i].value;
    }
    refuse(question, fmt::format("'{}' is not one of the choices.", shown(line)));
  }
}

std::string Asker::choice(const std::string& question, const std::vector<Choice>& choices,
                          size_t first) {
  if (can_draw(choices.size())) {
    if (const auto chosen = choose_by_keys(input_, question, choices, first))
      return choices[*chosen].value;
    write_out("\r\033[J");
  }
  return choose_in_list(question, choices, first);
}

std::string Asker::text(const std::string& question, const std::string& first,
                        const std::function<std::string(const std::string&)>& check) {
  while (true) {
    write_out(fmt::format("{} [{}]: ", question, first));
    std::string line = read_line(question);
    if (line.empty()) line = first;
    const std::string problem = check ? check(line) : "";
    if (problem.empty()) return line;
    refuse(question, problem);
  }
}

}  // namespace coupler::cli
