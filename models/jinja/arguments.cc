#include "jinja/arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "unicode.h"

namespace coupler::jinja {
namespace {

// str.isspace also counts four control characters.
bool python_blank(char32_t code) {
  return unicode::is_white_space(code) || (code >= 0x1c && code <= 0x1f);
}

}  // namespace

Value Call::get(size_t position, std::string_view argument,
                const std::optional<Value>& otherwise) const {
  if (position < arguments.positional.size()) return arguments.positional[position];
  for (const auto& [given, value] : arguments.named) {
    if (given == argument) return value;
  }
  if (otherwise) return *otherwise;
  throw Problem(fmt::format("'{}' needs its argument {}{}", name, position + 1,
                            argument.empty() ? "" : fmt::format(" ('{}')", argument)));
}

size_t python_blank_start(std::string_view text) {
  for (const unicode::Character& character : unicode::characters(text)) {
    if (!python_blank(character.code)) return character.span.begin;
  }
  return text.size();
}

size_t python_blank_end(std::string_view text) {
  size_t end = 0;
  for (const unicode::Character& character : unicode::characters(text)) {
    if (!python_blank(character.code)) end = character.span.end;
  }
  return end;
}

std::string stripped(std::string_view text, const Value& characters, bool left, bool right) {
  if (characters.is_none()) {
    const size_t begin = left ? python_blank_start(text) : 0;
    const size_t end = right ? python_blank_end(text) : text.size();
    return begin < end ? std::string(text.substr(begin, end - begin)) : "";
  }
  const std::string& unwanted = characters.text("strip");
  size_t begin = text.size(), end = 0;
  for (const unicode::Character& character : unicode::characters(text)) {
    if (unwanted.find(character.span.of(text)) != std::string::npos) continue;
    begin = std::min(begin, character.span.begin);
    end = character.span.end;
  }
  if (!left) begin = 0;
  if (!right) end = text.size();
  return begin < end ? std::string(text.substr(begin, end - begin)) : "";
}

std::string capitalized(const std::string& text) {
  const auto characters = unicode::characters(text);
  if (characters.empty()) return text;
  const size_t first = characters.front().span.end;
  return unicode::title(text.substr(0, first)) + unicode::lower(text.substr(first));
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to,
                     int64_t count) {
  if (from.empty()) throw Problem("replace needs a text that is not empty", true);
  std::string result;
  size_t at = 0;
  for (size_t found = text.find(from); found != std::string::npos && count != 0;
       found = text.find(from, at), --count) {
    result.append(text, at, found - at).append(to);
    Budget::check_size(result.size());
    at = found + from.size();
  }
  return result.append(text, at);
}

}  // namespace coupler::jinja
