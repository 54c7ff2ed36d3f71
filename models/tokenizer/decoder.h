// What tokenizer.json's "decoder" does: makes a text of tokens. Immutable, any thread. Sees no
// LibTorch.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "json_file.h"

namespace coupler {

// Tokens to pieces of text, which are then put together.
using Decoder = std::function<std::vector<std::string>(std::vector<std::string> tokens)>;

// description: tokenizer.json's; none puts blanks between tokens. Throws Error(kUnsupported) naming
// those that are there, where it is another.
Decoder make_decoder(const std::optional<JsonObject>& description);

}  // namespace coupler
