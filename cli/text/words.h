// Takes apart what users, variables and the kernel write: words, lists and numbers. Pure functions.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace coupler::cli {

// The parts of a value such as OP,... or a|b: always one more than there are separators.
std::vector<std::string> split(std::string_view text, char separator);

std::string lower(std::string text);  // ASCII letters only

// "; did you mean 'launch'?", or "" if no known name is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

// The number that the text is, from its first to its last character.
template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, number);
  return status == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

}  // namespace coupler::cli
