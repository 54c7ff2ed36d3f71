#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

namespace coupler {

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
  constexpr std::array<uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};  // by length
  for (size_t at = 0; at < bytes.size();) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[at + i]); };
    const auto ones = static_cast<size_t>(std::countl_one(byte(0)));
    const size_t length = ones == 0 ? 1 : ones;
    if (ones == 1 || ones > 4 || length > bytes.size() - at) return false;
    uint32_t code = byte(0) & (0xffu >> ones);
    for (size_t i = 1; i < length; ++i) {
      if ((byte(i) & 0xc0) != 0x80) return false;
      code = code << 6 | (byte(i) & 0x3fu);
    }
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    if (code < kLeast[length] || code > 0x10ffff || surrogate) return false;
    at += length;
  }
  return true;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
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
  // Of the first i characters of a and the first j of b.
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      cost[i][j] = i + j;
      if (i == 0 || j == 0) continue;
      const size_t replaced = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost.back().back();
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

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string near = nearest_name(name, candidates);
  return near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
}

}  // namespace coupler
