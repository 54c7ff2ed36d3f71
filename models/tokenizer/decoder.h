// tokenizer.json's "decoder": turns tokens into text. Immutable; safe to use from any thread. Does
// not depend on LibTorch.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "json_file.h"

namespace coupler {

// Turns tokens into pieces of text, which the caller concatenates.
using Decoder = std::function<std::vector<std::string>(std::vector<std::string> tokens)>;

// description: tokenizer.json's; without one, tokens are joined with spaces. Throws
// Error(kUnsupported), listing the supported types, for any other type.
Decoder make_decoder(const std::optional<JsonObject>& description);

}  // namespace coupler
