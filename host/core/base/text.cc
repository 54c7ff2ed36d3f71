#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

namespace coupler {
namespace {

// The length of the sequence that begins with `first`, and the range of its second byte; 0 if no
// sequence begins with it.
struct Sequence {
  size_t length;
  uint8_t low = 0x80;
  uint8_t high = 0xbf;
};

Sequence sequence_of(uint8_t first) {
  if (first < 0x80) return {1};
  if (first < 0xc2) return {0};
  if (first < 0xe0) return {2};
  if (first == 0xe0) return {3, 0xa0, 0xbf};
  if (first == 0xed) return {3, 0x80, 0x9f};
  if (first < 0xf0) return {3};
  if (first == 0xf0) return {4, 0x90, 0xbf};
  if (first < 0xf4) return {4};
  if (first == 0xf4) return {4, 0x80, 0x8f};
  return {0};
}

}  // namespace

std::string for_message(std::string_view text) {
  constexpr size_t kMost = 120;
  const bool valid = valid_utf8(text);
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    const bool continues = valid && (byte & 0xc0) == 0x80;  // the character before it
    if (result.size() >= kMost && !continues) return result + "…";
    if (byte < 0x20 || byte == 0x7f || (byte >= 0x80 && !valid))
      result += fmt::format("\\x{:02x}", byte);
    else
      result += c;
  }
  return result;
}

bool valid_utf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[at + i]); };
    const Sequence sequence = sequence_of(byte(0));
    if (sequence.length == 0 || sequence.length > bytes.size() - at) return false;
    if (sequence.length > 1 && (byte(1) < sequence.low || byte(1) > sequence.high)) return false;
    for (size_t i = 2; i < sequence.length; ++i)
      if ((byte(i) & 0xc0) != 0x80) return false;
    at += sequence.length;
  }
  return true;
}

std::optional<std::string> json_string(std::string_view text) {
  // Nearly all names: no need for a JSON value.
  if (std::all_of(text.begin(), text.end(),
                  [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; }))
    return fmt::format("\"{}\"", text);
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {  // thrown for bytes that are not UTF-8
    return std::nullopt;
  }
}

namespace {

constexpr size_t kLongestName = 128;  // longer ones are not typos, and cost quadratic time

std::string_view last_part(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1);
  std::vector<size_t> above(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  if (name.size() > kLongestName) return "";
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  const std::string_view name_end = last_part(name);
  for (const std::string& candidate : candidates) {
    size_t distance = edit_distance(name, candidate);
    if (name_end.size() >= 3) {
      const std::string_view end = last_part(candidate);
      const size_t of_ends = edit_distance(name_end, end);
      if (of_ends <= 1) distance = std::min(distance, of_ends + 1);
      if (end.substr(0, name_end.size()) == name_end) distance = std::min<size_t>(distance, 2);
    }
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace coupler
