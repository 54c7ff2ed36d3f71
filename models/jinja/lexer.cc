#include "jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "unicode.h"

namespace coupler::jinja {
namespace {

using Kind = Token::Kind;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

// Python ends lines at \r\n and \r, too; Jinja makes all of them \n, and drops the last one.
std::string with_plain_lines(const std::string& source) {
  std::string result;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      result += source[i];
    } else {
      result += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (result.ends_with('\n')) result.pop_back();
  return result;
}

class Lexer {
 public:
  explicit Lexer(const std::string& source) : text_(with_plain_lines(source)) {}

  std::vector<Token> all() {
    while (at_ < text_.size()) outside();
    tokens_.push_back({Kind::kEnd, "the end of the template", line_, {}});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(const std::string& message) const {
    throw ProblemInLine(line_, Problem(message));
  }
  bool sees(std::string_view what) const {
    return std::string_view(text_).substr(at_).starts_with(what);
  }
  void advance(size_t count) {
    const auto begin = text_.begin() + static_cast<std::ptrdiff_t>(at_);
    line_ +=
        static_cast<size_t>(std::count(begin, begin + static_cast<std::ptrdiff_t>(count), '\n'));
    at_ += count;
  }
  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) advance(1);
  }
  void add(Kind kind, std::string text, Value number = {}) {
    tokens_.push_back({kind, std::move(text), line_, std::move(number)});
  }

  // Text up to the next tag, and the tag.
  void outside() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= text_.size()) {
        tag = std::string::npos;
        break;
      }
      if (text_[tag + 1] == '{' || text_[tag + 1] == '%' || text_[tag + 1] == '#') break;
    }
    std::string before = text_.substr(at_, tag == std::string::npos ? tag : tag - at_);
    if (tag == std::string::npos) {
      add(Kind::kText, before);
      at_ = text_.size();
      return;
    }
    const char kind = text_[tag + 1];
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
    if (sign == '-') {
      before.erase(std::find_if_not(before.rbegin(), before.rend(), is_space).base(), before.end());
    } else if (sign != '+' && kind != '{') {
      strip_line_start(before);
    }
    if (!before.empty()) add(Kind::kText, before);
    advance(tag - at_ + 2);
    if (sign == '-' || sign == '+') advance(1);
    if (kind == '#') {
      const size_t end = text_.find("#}", at_);
      if (end == std::string::npos) refuse("a comment does not end");
      advance(end - at_);
      close("#}", true);
    } else if (kind == '%' && !raw()) {
      add(Kind::kBlockBegin, "{%");
      inside("%}", Kind::kBlockEnd);
    } else if (kind == '{') {
      add(Kind::kVariableBegin, "{{");
      inside("}}", Kind::kVariableEnd);
    }
  }

  // lstrip_blocks: a tag that starts a line takes the blanks before it.
  void strip_line_start(std::string& before) const {
    const size_t line = before.rfind('\n') + 1;  // 0 if there is none
    const bool starts = line > 0 || at_ == 0 || text_[at_ - 1] == '\n';
    if (starts &&
        std::all_of(before.begin() + static_cast<std::ptrdiff_t>(line), before.end(), is_space))
      before.erase(line);
  }

  // The end of a tag, which may take white space after it.
  void close(std::string_view end, bool trims) {
    const bool minus = at_ > 0 && text_[at_ - 1] == '-', plus = at_ > 0 && text_[at_ - 1] == '+';
    advance(end.size());
    if (minus) {
      skip_space();
    } else if (trims && !plus && sees("\n")) {
      advance(1);
    }
  }

  // {% raw %}…{% endraw %}; false if the tag is another.
  bool raw() {
    const size_t start = at_;
    const size_t line = line_;
    skip_space();
    if (!sees("raw")) return at_ = start, line_ = line, false;
    advance(3);
    skip_space();
    if (sees("-%}")) advance(1);
    if (!sees("%}")) return at_ = start, line_ = line, false;
    close("%}", true);
    const size_t from = at_;
    for (size_t tag = text_.find("{%", from); tag != std::string::npos;
         tag = text_.find("{%", tag + 2)) {
      size_t name = tag + 2;
      const bool strips = name < text_.size() && text_[name] == '-';
      if (strips) ++name;
      name = text_.find_first_not_of(" \t\n", name);
      if (name == std::string::npos || text_.compare(name, 6, "endraw") != 0) continue;
      std::string inner = text_.substr(from, tag - from);
      if (strips) {
        inner.erase(std::find_if_not(inner.rbegin(), inner.rend(), is_space).base(), inner.end());
      } else {
        strip_line_start(inner);
      }
      if (!inner.empty()) add(Kind::kText, inner);
      advance(name + 6 - at_);
      skip_space();
      if (sees("-%}")) advance(1);
      if (!sees("%}")) refuse("'endraw' takes nothing more");
      close("%}", true);
      return true;
    }
    refuse("'raw' has no 'endraw'");
  }

  void inside(std::string_view end, Kind kind) {
    std::string brackets;  // that are open: within them, "}}" may end two dictionaries
    while (true) {
      skip_space();
      if (at_ >= text_.size()) refuse(fmt::format("a tag does not end with '{}'", end));
      const bool minus = sees("-" + std::string(end));
      if (brackets.empty() && (minus || (end == "%}" && sees("+%}")) || sees(end))) {
        if (!sees(end)) advance(1);
        add(kind, std::string(end));
        close(end, kind == Kind::kBlockEnd);
        return;
      }
      token(brackets);
    }
  }

  void token(std::string& brackets) {
    const char c = text_[at_];
    if (is_name_start(c)) {
      const size_t begin = at_;
      while (at_ < text_.size() && (is_name_start(text_[at_]) || is_digit(text_[at_]))) ++at_;
      add(Kind::kName, text_.substr(begin, at_ - begin));
    } else if (is_digit(c)) {
      number();
    } else if (c == '"' || c == '\'') {
      string(c);
    } else {
      for (const char* known : {"//", "**", "==", "!=", "<=", ">="}) {
        if (!sees(known)) continue;
        add(Kind::kOperator, known);
        advance(2);
        return;
      }
      constexpr std::string_view kKnown = "+-*/%~<>=.,:|()[]{}";
      if (kKnown.find(c) == std::string_view::npos)
        refuse(fmt::format("'{}' is not expected in a tag", c));
      if (c == '(' || c == '[' || c == '{') brackets += c;
      if (c == ')' || c == ']' || c == '}') {
        const char open = c == ')' ? '(' : c == ']' ? '[' : '{';
        if (!brackets.ends_with(open)) refuse(fmt::format("'{}' closes nothing", c));
        brackets.pop_back();
      }
      add(Kind::kOperator, std::string(1, c));
      advance(1);
    }
  }

  void number() {
    std::string digits;
    bool whole = true;
    const auto digit_at = [&](size_t at) { return at < text_.size() && is_digit(text_[at]); };
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      const bool has_sign =
          at_ + 1 < text_.size() && (text_[at_ + 1] == '+' || text_[at_ + 1] == '-');
      if (is_digit(c)) {
        digits += c;
      } else if (c == '_' && digit_at(at_ + 1)) {
        continue;
      } else if (c == '.' && whole && digit_at(at_ + 1)) {
        digits += c;
        whole = false;
      } else if ((c == 'e' || c == 'E') && digit_at(at_ + (has_sign ? 2 : 1))) {
        digits += c;
        if (has_sign) digits += text_[++at_];
        whole = false;
      } else {
        break;
      }
    }
    const char* const end = digits.data() + digits.size();
    int64_t integer = 0;
    double real = 0;
    const auto read = whole ? std::from_chars(digits.data(), end, integer)
                            : std::from_chars(digits.data(), end, real);
    if (read.ec != std::errc() || read.ptr != end)
      refuse("the number " + digits + " is not valid or too large");
    add(Kind::kNumber, digits, whole ? Value(integer) : Value(real));
  }

  void string(char quote) {
    std::string value;
    const size_t begin = at_;
    size_t i = at_ + 1;
    for (; i < text_.size() && text_[i] != quote; ++i) {
      if (text_[i] == '\\' && i + 1 < text_.size()) {
        ++i;
        escape(i, value);
      } else {
        value += text_[i];
      }
    }
    if (i >= text_.size()) refuse("a string does not end");
    add(Kind::kString, value);
    advance(i + 1 - begin);
  }

  // Python's escapes; i: of the character after the backslash, and then of the last one that
  // belongs to it.
  void escape(size_t& i, std::string& value) const {
    constexpr std::pair<char, char> kKnown[] = {
        {'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'\\', '\\'}, {'\'', '\''}, {'"', '"'},
        {'a', '\a'}, {'b', '\b'}, {'f', '\f'}, {'v', '\v'},  {'0', '\0'}};
    const char c = text_[i];
    for (const auto& [name, meant] : kKnown) {
      if (c == name) {
        value += meant;
        return;
      }
    }
    if (c == '\n') return;  // the string goes on in the next line
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      value += {'\\', c};
      return;
    }
    uint32_t code = 0;
    const char* const from = text_.data() + i + 1;
    const bool whole = i + digits < text_.size() &&
                       std::from_chars(from, from + digits, code, 16).ptr == from + digits;
    if (!whole || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      refuse(fmt::format("'\\{}' must be followed by {} hexadecimal digits of a character", c,
                         digits));
    unicode::append(value, static_cast<char32_t>(code));
    i += digits;
  }

  const std::string text_;
  size_t at_ = 0, line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(const std::string& source) { return Lexer(source).all(); }

}  // namespace coupler::jinja
