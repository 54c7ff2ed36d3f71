#include "unicode.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <unicode/brkiter.h>
#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/regex.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace coupler::unicode {
namespace {

icu::UnicodeString wide(std::string_view text) {
  return icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
}

std::string narrow(const icu::UnicodeString& text) {
  std::string result;
  text.toUTF8String(result);
  return result;
}

uint32_t mask_of(char32_t code) { return U_GET_GC_MASK(static_cast<UChar32>(code)); }

// \s means Unicode white space; ICU's \s omits some of it.
std::string in_icu_words(const std::string& expression) {
  std::string result;
  for (size_t i = 0; i < expression.size(); ++i) {
    if (expression[i] != '\\' || i + 1 == expression.size()) {
      result += expression[i];
      continue;
    }
    const char next = expression[++i];
    if (next == 's') {
      result += "\\p{White_Space}";
    } else if (next == 'S') {
      result += "\\P{White_Space}";
    } else {
      result += {'\\', next};
    }
  }
  return result;
}

}  // namespace

std::string repaired(std::string_view bytes) { return narrow(wide(bytes)); }

std::vector<Character> characters(std::string_view text) {
  std::vector<Character> result;
  result.reserve(text.size());
  size_t at = 0;
  while (at < text.size()) {
    const size_t begin = at;
    UChar32 code = 0;
    U8_NEXT_OR_FFFD(text.data(), at, text.size(), code);
    result.push_back({static_cast<char32_t>(code), {begin, at}});
  }
  return result;
}

std::vector<Span> graphemes(std::string_view text) {
  UErrorCode error = U_ZERO_ERROR;
  const std::unique_ptr<icu::BreakIterator> breaks(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), error));
  const icu::UnicodeString input = wide(text);
  std::vector<Span> result;
  if (U_FAILURE(error))
    throw Error(ErrorCode::kInternal,
                fmt::format("ICU cannot divide text into characters: {}", u_errorName(error)),
                {.subject = "ICU", .hint = "use the libicu version that Coupler was built with"});
  breaks->setText(input);
  size_t byte = 0;
  for (int32_t unit = 0, end = breaks->next(); end != icu::BreakIterator::DONE;
       end = breaks->next()) {
    const size_t begin = byte;
    while (unit < end) {
      UChar32 code = 0;
      U8_NEXT_OR_FFFD(text.data(), byte, text.size(), code);
      unit += U16_LENGTH(code);
    }
    result.push_back({begin, byte});
  }
  return result;
}

void append(std::string& text, char32_t code) {
  char bytes[U8_MAX_LENGTH];
  int32_t size = 0;
  U8_APPEND_UNSAFE(bytes, size, static_cast<UChar32>(code));
  text.append(bytes, static_cast<size_t>(size));
}

std::string map(std::string_view text,
                const std::function<void(char32_t code, std::string& out)>& change) {
  std::string result;
  result.reserve(text.size());
  for (const Character& character : characters(text)) change(character.code, result);
  return result;
}

std::string normalized(std::string_view text, Form form) {
  const bool composed = form == Form::kNfc || form == Form::kNfkc;
  const bool canonical = form == Form::kNfc || form == Form::kNfd;
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* const normalizer = icu::Normalizer2::getInstance(
      nullptr, canonical ? "nfc" : "nfkc", composed ? UNORM2_COMPOSE : UNORM2_DECOMPOSE, error);
  icu::UnicodeString result;
  if (U_SUCCESS(error)) result = normalizer->normalize(wide(text), error);
  if (U_FAILURE(error))
    throw Error(ErrorCode::kInternal, fmt::format("ICU cannot normalize: {}", u_errorName(error)),
                {.subject = "ICU", .hint = "use the libicu version that Coupler was built with"});
  return narrow(result);
}

void append_lower(std::string& text, char32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code >= 'A' && code <= 'Z' ? code + 32 : code);
    return;
  }
  icu::UnicodeString lower(static_cast<UChar32>(code));
  lower.toLower(icu::Locale::getRoot()).toUTF8String(text);
}

std::string lower(std::string_view text) {
  return narrow(wide(text).toLower(icu::Locale::getRoot()));
}

std::string upper(std::string_view text) {
  return narrow(wide(text).toUpper(icu::Locale::getRoot()));
}

std::string title(std::string_view character) {
  return narrow(wide(character).toTitle(nullptr, icu::Locale::getRoot()));
}

size_t blank_start(std::string_view text) {
  for (const Character& character : characters(text)) {
    if (!is_white_space(character.code)) return character.span.begin;
  }
  return text.size();
}

size_t blank_end(std::string_view text) {
  size_t end = 0;
  for (const Character& character : characters(text)) {
    if (!is_white_space(character.code)) end = character.span.end;
  }
  return end;
}

bool is_white_space(char32_t code) { return u_isUWhiteSpace(static_cast<UChar32>(code)) != 0; }
bool is_punctuation(char32_t code) {
  if (code < 0x80) return code > 0x20 && code < 0x7f && u_isalnum(static_cast<UChar32>(code)) == 0;
  return (mask_of(code) & U_GC_P_MASK) != 0;
}
bool is_number(char32_t code) { return (mask_of(code) & U_GC_N_MASK) != 0; }
bool is_control(char32_t code) {
  if (code == '\t' || code == '\n' || code == '\r') return false;
  return (mask_of(code) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) != 0;
}
bool is_nonspacing_mark(char32_t code) { return (mask_of(code) & U_GC_MN_MASK) != 0; }
bool is_mark(char32_t code) { return (mask_of(code) & U_GC_M_MASK) != 0; }
bool is_word(char32_t code) {
  return u_isUAlphabetic(static_cast<UChar32>(code)) != 0 ||
         (mask_of(code) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

bool is_ideograph(char32_t code) {
  constexpr std::pair<char32_t, char32_t> kBlocks[] = {
      {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
      {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kBlocks), std::end(kBlocks), [&](const auto& block) {
    return code >= block.first && code <= block.second;
  });
}

struct Pattern::Compiled {
  std::unique_ptr<icu::RegexPattern> pattern;
};

Pattern Pattern::regex(const std::string& expression, const std::string& where) {
  UErrorCode error = U_ZERO_ERROR;
  UParseError place;
  auto compiled = std::make_shared<Compiled>();
  compiled->pattern.reset(
      icu::RegexPattern::compile(wide(in_icu_words(expression)), 0, place, error));
  if (U_FAILURE(error))
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the pattern '{}' cannot be used: {}", where, expression,
                            u_errorName(error)),
                {.subject = where, .hint = "use syntax that both Oniguruma and ICU support"});
  Pattern result;
  result.compiled_ = std::move(compiled);
  return result;
}

Pattern Pattern::literal(const std::string& text) {
  Pattern result;
  result.literal_ = text;
  return result;
}

std::vector<Span> Pattern::find(std::string_view text) const {
  std::vector<Span> result;
  if (compiled_ == nullptr) {
    if (literal_.empty()) return result;
    for (size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, at + literal_.size()))
      result.push_back({at, at + literal_.size()});
    return result;
  }
  const icu::UnicodeString input = wide(text);
  UErrorCode error = U_ZERO_ERROR;
  const std::unique_ptr<icu::RegexMatcher> matcher(compiled_->pattern->matcher(input, error));
  // Converts ICU's positions, in 16-bit units, to bytes; both only go forward.
  size_t byte = 0;
  int32_t unit = 0;
  const auto byte_at = [&](int32_t wanted) {
    while (unit < wanted) {
      UChar32 code = 0;
      U8_NEXT_OR_FFFD(text.data(), byte, text.size(), code);
      unit += U16_LENGTH(code);
    }
    return byte;
  };
  while (U_SUCCESS(error) && matcher->find(error) != 0) {
    const int32_t begin = matcher->start(error), end = matcher->end(error);
    if (begin == end) continue;
    const size_t from = byte_at(begin);
    result.push_back({from, byte_at(end)});
  }
  if (U_FAILURE(error))
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("text of {} bytes cannot be divided into words: {}", text.size(),
                            u_errorName(error)),
                {.subject = "text", .hint = "pass it in shorter pieces"});
  return result;
}

std::string Pattern::replaced(std::string_view text, std::string_view content) const {
  std::string result;
  size_t at = 0;
  for (const Span& span : find(text)) {
    result.append(text, at, span.begin - at).append(content);
    at = span.end;
  }
  return result.append(text, at);
}

}  // namespace coupler::unicode

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
