// A word divided where something is found in it. Pure functions, any thread. Sees no LibTorch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "json_file.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/unicode.h"

namespace coupler {

// What becomes of what was found.
enum class Found { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// "Isolated", … of a key. Throws Error(kInvalidArgument) for another word.
Found found_of(const JsonObject& description, const char* key, Found otherwise);

// Appends the parts of a word. found: in order; invert: what was not found instead.
void split(const Word& word, const std::vector<unicode::Span>& found, Found behaviour, bool invert,
           std::vector<Word>& parts);

// Each character of a kind, by itself.
std::vector<unicode::Span> find_characters(std::string_view text, bool (*wanted)(char32_t));

}  // namespace coupler
