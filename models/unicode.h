// Unicode for tokenizers, based on ICU: characters and their categories, normal forms, patterns.
// Text is always UTF-8; positions are in bytes. Immutable; safe to use from any thread. Does not
// depend on LibTorch.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coupler::unicode {

// A part of a text, from begin up to end.
struct Span {
  size_t begin = 0, end = 0;
  std::string of(std::string_view text) const {
    return std::string(text.substr(begin, end - begin));
  }
};

// Replaces invalid UTF-8 with U+FFFD, as Python and Rust do.
std::string repaired(std::string_view bytes);

// The characters of a text, which must be UTF-8.
struct Character {
  char32_t code = 0;
  Span span;
};
std::vector<Character> characters(std::string_view text);
// What a reader takes for one character: a letter with its accents, an emoji of several.
std::vector<Span> graphemes(std::string_view text);
void append(std::string& text, char32_t code);
// Replaces each character with what `change` appends.
std::string map(std::string_view text,
                const std::function<void(char32_t code, std::string& out)>& change);

enum class Form { kNfc, kNfd, kNfkc, kNfkd };
std::string normalized(std::string_view text, Form form);
// Lowercases each character on its own, so a final sigma is not treated specially.
void append_lower(std::string& text, char32_t code);
// Of a whole text, as Python's str.lower and str.upper; title: of one character.
std::string lower(std::string_view text);
std::string upper(std::string_view text);
std::string title(std::string_view character);

// Where leading white space ends, and where trailing white space begins.
size_t blank_start(std::string_view text);
size_t blank_end(std::string_view text);

bool is_white_space(char32_t code);
bool is_punctuation(char32_t code);  // ASCII's symbols included
bool is_number(char32_t code);       // any of the categories N
bool is_control(char32_t code);      // Cc, Cf and Co, except tab and line ends
bool is_nonspacing_mark(char32_t code);
bool is_mark(char32_t code);
bool is_word(char32_t code);  // as \w
bool is_ideograph(char32_t code);

// A regular expression in tokenizer.json's syntax (Oniguruma's), or a literal string.
class Pattern {
 public:
  // Throws Error(kInvalidArgument) with ICU's error, naming `where`.
  static Pattern regex(const std::string& expression, const std::string& where);
  static Pattern literal(const std::string& text);

  // Non-empty matches, in order.
  std::vector<Span> find(std::string_view text) const;
  // The text with `content` in place of each match.
  std::string replaced(std::string_view text, std::string_view content) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
  std::string literal_;
};

}  // namespace coupler::unicode

namespace coupler {

// GPT-2's printable characters for bytes, as byte-level tokenizers use them. Pure functions; safe
// to call from any thread. Do not depend on LibTorch.

// Replaces each byte with its character.
std::string to_byte_alphabet(std::string_view bytes);

// The inverse; nothing if the text has any other character.
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace coupler
