#include "base/file_text.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

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

std::string shown(std::string_view text) {
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

}  // namespace coupler
