// What tokenizer.json does to a text before its model: the "normalizer" changes it, and the
// "pre_tokenizer" divides it into the words that the model tokenizes. Immutable; safe to use from
// any thread. Do not depend on LibTorch.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "json_file.h"

namespace coupler {

using Normalizer = std::function<std::string(std::string text)>;

// description: tokenizer.json's; without one, texts stay as they are. Throws Error(kUnsupported),
// listing the supported types, for any other type.
Normalizer make_normalizer(const std::optional<JsonObject>& description);

struct Word {
  std::string text;
  bool at_start = false;  // whether the whole text begins with it
};

// Takes the output of earlier parts; returns only non-empty words.
using PreTokenizer = std::function<std::vector<Word>(std::vector<Word> words)>;

// description: tokenizer.json's; without one, words stay as they are. Throws Error(kUnsupported),
// listing the supported types, for any other type.
PreTokenizer make_pre_tokenizer(const std::optional<JsonObject>& description);

}  // namespace coupler
