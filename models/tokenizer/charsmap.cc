#include "tokenizer/charsmap.h"

#include <array>
#include <utility>

#include "base/text.h"
#include "unicode.h"

namespace coupler {
namespace {

constexpr const char* kTable = "precompiled_charsmap";

[[noreturn]] void refuse_table(const JsonObject& description, const std::string& problem) {
  description.refuse(kTable, problem, "save the tokenizer again; this file is damaged");
}

// Nothing if the text is not base64.
std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  std::array<int, 256> values{};
  values.fill(-1);
  for (size_t i = 0; i < kDigits.size(); ++i)
    values[static_cast<unsigned char>(kDigits[i])] = static_cast<int>(i);
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char digit : text) {
    const int value = values[static_cast<unsigned char>(digit)];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xFF);
  }
  return bytes;
}

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// The parts of a unit of the trie.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000FF; }
uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

}  // namespace

Charsmap::Charsmap(const JsonObject& description) {
  const auto bytes = from_base64(description.text(kTable));
  if (!bytes) refuse_table(description, "is not base64");
  const std::string_view all = *bytes;
  const size_t size = all.size() < 4 ? 0 : little_endian(all);
  if (all.size() < 4 || size % 4 != 0 || size == 0 || size > all.size() - 4)
    refuse_table(description, "has a wrong size");
  for (size_t at = 4; at < 4 + size; at += 4) units_.push_back(little_endian(all.substr(at)));
  texts_ = all.substr(4 + size);
  if (!valid_utf8(texts_)) refuse_table(description, "has texts that are not UTF-8");
}

std::optional<std::string_view> Charsmap::replacement(std::string_view part) const {
  size_t at = offset_of(units_[0]);
  for (const char byte : part) {
    const auto label = static_cast<unsigned char>(byte);
    if (label == 0) return std::nullopt;
    at ^= label;
    if (at >= units_.size() || label_of(units_[at]) != label) return std::nullopt;
    const uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (at >= units_.size()) return std::nullopt;
    const size_t begin = value_of(units_[at]);
    if (begin > texts_.size()) return std::nullopt;
    const std::string_view rest = std::string_view(texts_).substr(begin);
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

std::string Charsmap::normalized(const std::string& text) const {
  constexpr size_t kLongest = 5;  // graphemes that are replaced as a whole
  std::string result;
  for (const unicode::Span& grapheme : unicode::graphemes(text)) {
    const std::string_view part =
        std::string_view(text).substr(grapheme.begin, grapheme.end - grapheme.begin);
    const auto whole = part.size() <= kLongest ? replacement(part) : std::nullopt;
    if (whole) {
      result += *whole;
      continue;
    }
    for (const unicode::Character& character : unicode::characters(part)) {
      const std::string one = character.span.of(part);
      result += replacement(one).value_or(one);
    }
  }
  return result;
}

}  // namespace coupler
