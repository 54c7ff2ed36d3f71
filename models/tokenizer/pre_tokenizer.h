// tokenizer.json's "pre_tokenizer": divides a text into the words that the model tokenizes.
// Immutable; safe to use from any thread. Does not depend on LibTorch.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "json_file.h"

namespace coupler {

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
