#include "tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "tokenizer/unicode.h"

namespace coupler {
namespace {

// Printable Latin-1 bytes map to themselves, the others to the characters from 256 on, in order.
constexpr bool is_seen(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr auto kCharacters = [] {
  std::array<char32_t, 256> characters{};
  char32_t next = 256;
  for (int byte = 0; byte < 256; ++byte)
    characters[byte] = is_seen(byte) ? static_cast<char32_t>(byte) : next++;
  return characters;
}();

constexpr size_t kKnown = 256 + 68;  // 68 bytes are not printable
constexpr auto kBytes = [] {
  std::array<int16_t, kKnown> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) bytes[kCharacters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}();

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string result;
  for (const char byte : bytes)
    unicode::append(result, kCharacters[static_cast<unsigned char>(byte)]);
  return result;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string result;
  for (const unicode::Character& character : unicode::characters(text)) {
    if (character.code >= kKnown || kBytes[character.code] < 0) return std::nullopt;
    result += static_cast<char>(kBytes[character.code]);
  }
  return result;
}

}  // namespace coupler
