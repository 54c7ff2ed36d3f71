// Text: from untrusted files, and what users, variables and the kernel write. Pure functions, any
// thread.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace coupler {

// For messages: shortened between characters, with control characters escaped, and bytes of 0x80
// and above too unless the text is valid UTF-8.
std::string for_message(std::string_view text);

// Whether the bytes are UTF-8 according to RFC 3629: no surrogates, no overlong forms.
bool valid_utf8(std::string_view bytes);

// The parts of a text such as "a,b": always one more than there are separators.
std::vector<std::string> split(std::string_view text, char separator);

std::string lower(std::string text);  // ASCII letters only

// The number that the text is, from its first to its last character.
template <typename Number>
std::optional<Number> to_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, number);
  return status == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

// The text as a quoted JSON string that escapes only what it must. Nothing if it is not valid
// UTF-8.
std::optional<std::string> json_string(std::string_view text);

// For "did you mean …?": insertions, deletions, replacements and swaps of neighbors (restricted
// Damerau-Levenshtein).
size_t edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to name, "" if none is near. The last part of a dotted name, or its start,
// also matches alone: 'seed' is near 'training.seed', 'threads' near 'x.threads_per_process'.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

// "; did you mean 'training.seed'?", for the end of a message; "" if no candidate is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace coupler
