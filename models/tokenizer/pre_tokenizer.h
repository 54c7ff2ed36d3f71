// What tokenizer.json's "pre_tokenizer" does: divides a text into the words that the model sees.
// Immutable, any thread. Sees no LibTorch.
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

// Takes what earlier parts made; none of the results is empty.
using PreTokenizer = std::function<std::vector<Word>(std::vector<Word> words)>;

// description: tokenizer.json's; none leaves words as they are. Throws Error(kUnsupported) naming
// those that are there, where it is another.
PreTokenizer make_pre_tokenizer(const std::optional<JsonObject>& description);

}  // namespace coupler
