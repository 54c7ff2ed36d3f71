// Divides a word at the parts found in it. Pure functions; safe to call from any thread. Do not
// depend on LibTorch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "json_file.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/unicode.h"

namespace coupler {

// What happens to the found parts.
enum class Found { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Parses a key's "Isolated", … Throws Error(kInvalidArgument) for an unknown value.
Found found_of(const JsonObject& description, const char* key, Found otherwise);

// Appends the parts of a word. found: in order. invert: treats the parts between as found instead.
void split(const Word& word, const std::vector<unicode::Span>& found, Found behaviour, bool invert,
           std::vector<Word>& parts);

// The position of each matching character.
std::vector<unicode::Span> find_characters(std::string_view text, bool (*wanted)(char32_t));

}  // namespace coupler
