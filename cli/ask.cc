#include "ask.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string_view>

namespace coupler::cli {
namespace {

void write_out(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// A terminal that gives keys as they are pressed and does not show them. Ctrl-C is a key, too, so
// that whoever asks can put things back.
class RawTerminal {
 public:
  RawTerminal() {
    tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    write_out("\033[?25l");  // no cursor
  }
  ~RawTerminal() {
    write_out("\033[?25h");
    tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

 private:
  termios before_{};
};

struct Size {
  int rows = 0, columns = 0;
};

// Of a terminal on which lines can be drawn again; none elsewhere.
std::optional<Size> terminal() {
  const char* kind = std::getenv("TERM");
  winsize size{};
  if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || kind == nullptr ||
      std::string_view(kind) == "dumb" || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) {
    return std::nullopt;
  }
  return Size{size.ws_row, size.ws_col};
}

// By https://no-color.org: any value but an empty one turns them off.
bool has_colours() {
  const char* off = std::getenv("NO_COLOR");
  return off == nullptr || *off == '\0';
}

enum class Key { kUp, kDown, kEnter, kInterrupt, kOther };

std::optional<char> read_byte() {
  char byte = 0;
  ssize_t got = 0;
  while ((got = read(STDIN_FILENO, &byte, 1)) < 0 && errno == EINTR) {
  }
  return got == 1 ? std::optional(byte) : std::nullopt;
}

Key read_key() {
  const auto byte = read_byte();
  constexpr char kCtrlC = 3, kCtrlD = 4, kEscape = 27;
  if (!byte || *byte == kCtrlC || *byte == kCtrlD) return Key::kInterrupt;
  if (*byte == '\r' || *byte == '\n') return Key::kEnter;
  if (*byte == 'k') return Key::kUp;
  if (*byte == 'j') return Key::kDown;
  if (*byte != kEscape) return Key::kOther;
  const auto second = read_byte();
  if (!second || (*second != '[' && *second != 'O')) return Key::kOther;
  const auto third = read_byte();
  if (third == 'A') return Key::kUp;
  return third == 'B' ? Key::kDown : Key::kOther;
}

// As many characters of it as there are columns, which for UTF-8 is not its bytes.
std::string fitted(const std::string& line, int columns) {
  int seen = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(line[i]) & 0xC0) != 0x80;
    if (begins && ++seen > columns) return line.substr(0, i);
  }
  return line;
}

std::string line_of(const Choice& choice, bool chosen, int columns) {
  const std::string text =
      choice.meaning.empty() ? choice.value : fmt::format("{}: {}", choice.value, choice.meaning);
  const bool coloured = chosen && has_colours();
  return fmt::format("\033[K{}{}{}{}\n", coloured ? "\033[36m" : "", chosen ? "> " : "  ",
                     fitted(text, columns - 3), coloured ? "\033[0m" : "");
}

std::string ask_with_keys(const std::string& question, const std::vector<Choice>& choices,
                          size_t first, int columns) {
  const RawTerminal terminal;  // before anybody answers
  write_out(fmt::format("{}\n", fitted(question, columns - 1)));
  size_t at = first;
  const auto draw = [&] {
    std::string text;
    for (size_t i = 0; i < choices.size(); ++i) text += line_of(choices[i], i == at, columns);
    write_out(text);
  };
  draw();
  while (true) {
    const Key key = read_key();
    if (key == Key::kInterrupt) {
      write_out("\n");
      throw Interrupted();
    }
    if (key == Key::kUp) at = at == 0 ? choices.size() - 1 : at - 1;
    if (key == Key::kDown) at = at + 1 == choices.size() ? 0 : at + 1;
    write_out(fmt::format("\033[{}A", choices.size()));
    if (key != Key::kEnter) {
      draw();
      continue;
    }
    // The question and its answer stay, the list goes.
    write_out(fmt::format("\033[J  {}\n", choices[at].value));
    return choices[at].value;
  }
}

std::string read_line() {
  std::string line;
  if (!std::getline(std::cin, line)) throw Interrupted();
  const size_t begin = line.find_first_not_of(" \t\r");
  return begin == std::string::npos
             ? ""
             : line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

}  // namespace

std::string ask_choice(const std::string& question, const std::vector<Choice>& choices,
                       size_t first) {
  constexpr int kLeastColumns = 30;
  const auto size = terminal();
  if (size && size->columns >= kLeastColumns && size->rows > static_cast<int>(choices.size()) + 1)
    return ask_with_keys(question, choices, first, size->columns);
  std::string text = question + "\n";
  for (size_t i = 0; i < choices.size(); ++i) {
    text += fmt::format("  {}) {}{}{}\n", i + 1, choices[i].value,
                        choices[i].meaning.empty() ? "" : ": ", choices[i].meaning);
  }
  while (true) {
    write_out(fmt::format("{}number or name [{}]: ", text, choices[first].value));
    const std::string line = read_line();
    if (line.empty()) return choices[first].value;
    for (size_t i = 0; i < choices.size(); ++i) {
      if (line == choices[i].value || line == std::to_string(i + 1)) return choices[i].value;
    }
    text = fmt::format("'{}' is none of them.\n", line);
  }
}

std::string ask_text(const std::string& question, const std::string& first,
                     const std::function<std::string(const std::string&)>& check) {
  while (true) {
    write_out(fmt::format("{} [{}]: ", question, first));
    std::string line = read_line();
    if (line.empty()) line = first;
    const std::string problem = check ? check(line) : "";
    if (problem.empty()) return line;
    write_out(problem + "\n");
  }
}

}  // namespace coupler::cli
