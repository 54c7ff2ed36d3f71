// What tokenizer.json's "normalizer" does to a text before it is divided. Immutable, any thread.
// Sees no LibTorch.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "json_file.h"

namespace coupler {

using Normalizer = std::function<std::string(std::string text)>;

// description: tokenizer.json's; none leaves texts as they are. Throws Error(kUnsupported) naming
// those that are there, where it is another.
Normalizer make_normalizer(const std::optional<JsonObject>& description);

}  // namespace coupler
