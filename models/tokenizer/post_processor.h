// What tokenizer.json does to the tokens after its model: the "post_processor" adds some around a
// text, and the "decoder" turns tokens into text. Immutable; safe to use from any thread. Do not
// depend on LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "json_file.h"

namespace coupler {

// The tokens to add around a text.
struct PostProcessor {
  std::vector<int64_t> before, after;
};

// description: tokenizer.json's; without one, nothing is added. Throws Error(kUnsupported), listing
// the supported types, for any other type.
PostProcessor make_post_processor(const std::optional<JsonObject>& description);

// Turns tokens into pieces of text, which the caller concatenates.
using Decoder = std::function<std::vector<std::string>(std::vector<std::string> tokens)>;

// description: tokenizer.json's; without one, tokens are joined with spaces. Throws
// Error(kUnsupported), listing the supported types, for any other type.
Decoder make_decoder(const std::optional<JsonObject>& description);

}  // namespace coupler
