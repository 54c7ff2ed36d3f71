#include "cli/config/key_list.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace coupler::cli {
namespace {

constexpr int kLeastColumns = 30;

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
bool has_colours() {
  const char* off = std::getenv("NO_COLOR");
  return off == nullptr || *off == '\0';
}

std::string line_of(const Choice& choice, bool chosen, int columns) {
  const std::string text =
      choice.meaning.empty() ? choice.value : fmt::format("{}: {}", choice.value, choice.meaning);
  const bool coloured = chosen && has_colours();
  return fmt::format("\033[K{}{}{}{}\n", coloured ? "\033[36m" : "", chosen ? "> " : "  ",
                     fitted(text, columns - 3), coloured ? "\033[0m" : "");
}

bool list_fits(const std::optional<Size>& size, size_t choices) {
  return size && size->columns >= kLeastColumns && size->rows > static_cast<int>(choices) + 1;
}

}  // namespace

void write_out(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

bool can_draw(size_t choices) { return list_fits(terminal(), choices); }

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

}  // namespace coupler::cli
