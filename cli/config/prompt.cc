#include "cli/config/prompt.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace coupler::cli {

namespace {

// Flushes, so that a question is visible before its answer is read.
void write_out(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

constexpr int kMinColumns = 30;

// Puts the terminal into a mode that delivers keys as they are pressed, without echo. Ctrl-C is a
// key, too. The destructor restores the terminal.
class RawTerminal {
 public:
  RawTerminal() {
    tcgetattr(STDIN_FILENO, &before_);
    enter();
  }
  ~RawTerminal() {
    write_out("\033[?25h");
    tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

  // Call again after the process was stopped, because the shell has restored its own mode.
  void enter() const {
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    write_out("\033[?25l");  // no cursor
  }

 private:
  termios before_{};
};

struct Size {
  int rows = 0, columns = 0;
};

// The size of a terminal on which lines can be redrawn; empty elsewhere.
std::optional<Size> terminal() {
  const char* kind = std::getenv("TERM");
  winsize size{};
  if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0 || kind == nullptr ||
      std::string_view(kind) == "dumb" || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) {
    return std::nullopt;
  }
  return Size{size.ws_row, size.ws_col};
}

enum class Key { kUp, kDown, kEnter, kRedraw, kOther };

using Kind = QuestionInput::Event::Kind;

// Reads what follows an escape: "[A" or "OA" for an arrow, longer sequences for other keys, nothing
// for the Escape key alone.
Key read_escape(QuestionInput& input) {
  constexpr int kWithin = 50;  // milliseconds; a terminal sends a whole sequence at once
  const auto second = input.next(kWithin);
  if (second.kind != Kind::kByte || (second.byte != '[' && second.byte != 'O')) return Key::kOther;
  while (true) {
    const auto event = input.next(kWithin);
    if (event.kind != Kind::kByte) return Key::kOther;
    if (event.byte == 'A') return Key::kUp;
    if (event.byte == 'B') return Key::kDown;
    if (event.byte >= '@' && event.byte <= '~') return Key::kOther;  // end of the sequence
  }
}

Key read_key(QuestionInput& input) {
  const auto event = input.next();
  constexpr char kCtrlC = 3, kCtrlD = 4, kEscape = 27;
  if (event.kind == Kind::kSignal) throw Interrupted{event.signal};
  if (event.kind == Kind::kEnd) throw Interrupted{SIGHUP};
  if (event.kind != Kind::kByte) return Key::kRedraw;
  switch (event.byte) {
    case kCtrlC:
    case kCtrlD:
      throw Interrupted{SIGINT};
    case '\r':
    case '\n':
      return Key::kEnter;
    case 'k':
      return Key::kUp;
    case 'j':
      return Key::kDown;
    case kEscape:
      return read_escape(input);
    default:
      return Key::kOther;
  }
}

// The line cut to `columns` characters, not bytes, of UTF-8.
std::string fitted(const std::string& line, int columns) {
  int seen = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(line[i]) & 0xC0) != 0x80;
    if (begins && ++seen > columns) return line.substr(0, i);
  }
  return line;
}

// See https://no-color.org: any value except an empty one turns colors off.
bool has_colors() {
  const char* off = std::getenv("NO_COLOR");
  return off == nullptr || *off == '\0';
}

std::string line_of(const Choice& choice, bool chosen, int columns) {
  const std::string text =
      choice.meaning.empty() ? choice.value : fmt::format("{}: {}", choice.value, choice.meaning);
  const bool colored = chosen && has_colors();
  return fmt::format("\033[K{}{}{}{}\n", colored ? "\033[36m" : "", chosen ? "> " : "  ",
                     fitted(text, columns - 3), colored ? "\033[0m" : "");
}

// Whether the terminal can redraw this number of choices.
bool list_fits(const std::optional<Size>& size, size_t choices) {
  return size && size->columns >= kMinColumns && size->rows > static_cast<int>(choices) + 1;
}

// The index of the choice taken with Enter; empty if the terminal became too small. Throws
// Interrupted.
std::optional<size_t> choose_by_keys(QuestionInput& input, const std::string& question,
                                     const std::vector<Choice>& choices, size_t first) {
  const RawTerminal raw;  // before the user can answer
  size_t at = first;
  const auto draw = [&](const std::string& before) {
    const auto size = terminal();
    std::string text = before;
    if (!before.empty()) text += fitted(question, size->columns - 1) + "\n";
    for (size_t i = 0; i < choices.size(); ++i) text += line_of(choices[i], i == at, size->columns);
    write_out(text);
  };
  draw("\r");
  try {
    while (true) {
      const Key key = read_key(input);
      // After a resize, the terminal may have rewrapped lines at unknown positions.
      if (!list_fits(terminal(), choices.size())) return std::nullopt;
      if (key == Key::kRedraw) {
        raw.enter();
        draw("\r\033[J");
        continue;
      }
      if (key == Key::kUp) at = at == 0 ? choices.size() - 1 : at - 1;
      if (key == Key::kDown) at = at + 1 == choices.size() ? 0 : at + 1;
      write_out(fmt::format("\033[{}A", choices.size()));
      if (key == Key::kEnter) break;
      draw("");
    }
  } catch (const Interrupted&) {
    write_out("\n");
    throw;
  }
  // Keep the question and its answer, erase the list.
  write_out(fmt::format("\033[J  {}\n", choices[at].value));
  return at;
}

[[noreturn]] void fail_system(const char* action) {
  throw Error(ErrorCode::kIo, fmt::format("cannot {}: {}", action, errno_message()),
              {.subject = "standard input",
               .hint = "`coupler config default` writes a configuration without questions"});
}

}  // namespace

QuestionInput::QuestionInput() {
  sigset_t watched;
  sigemptyset(&watched);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGCONT})
    sigaddset(&watched, signal);
  sigprocmask(SIG_BLOCK, &watched, &before_);
  signals_ = UniqueFd(::signalfd(-1, &watched, SFD_CLOEXEC));
  if (signals_) return;
  sigprocmask(SIG_SETMASK, &before_, nullptr);
  fail_system("watch for signals");
}

QuestionInput::~QuestionInput() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

QuestionInput::Event QuestionInput::next(int milliseconds) {
  while (given_ == ready_.size()) {
    pollfd sources[] = {{signals_.get(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    const int count = ::poll(sources, 2, milliseconds);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_system("wait for an answer");
    if (count == 0) return {.kind = Kind::kNothing};
    signalfd_siginfo info{};
    if ((sources[0].revents & POLLIN) != 0 &&
        ::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      const auto signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGWINCH || signal == SIGCONT) return {.kind = Kind::kRedraw};
      return {.kind = Kind::kSignal, .signal = signal};
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

std::string Prompter::read_line(const std::string& question) {
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
void Prompter::refuse(const std::string& question, const std::string& problem) const {
  if (isatty(STDIN_FILENO) == 0) fail_answer(question, problem.substr(0, problem.rfind('.')));
  write_out(problem + "\n");
}

std::string Prompter::choose_in_list(const std::string& question,
                                     const std::vector<Choice>& choices, size_t first) {
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
    refuse(question, fmt::format("'{}' is not one of the choices.", for_message(line)));
  }
}

std::string Prompter::choice(const std::string& question, const std::vector<Choice>& choices,
                             size_t first) {
  if (list_fits(terminal(), choices.size())) {
    if (const auto chosen = choose_by_keys(input_, question, choices, first))
      return choices[*chosen].value;
    write_out("\r\033[J");
  }
  return choose_in_list(question, choices, first);
}

std::string Prompter::text(const std::string& question, const std::string& first,
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
