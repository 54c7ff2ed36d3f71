// tokenizer.json's "normalizer": changes a text before it is divided. Immutable; safe to use from
// any thread. Does not depend on LibTorch.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "json_file.h"

namespace coupler {

using Normalizer = std::function<std::string(std::string text)>;

// description: tokenizer.json's; without one, texts stay as they are. Throws Error(kUnsupported),
// listing the supported types, for any other type.
Normalizer make_normalizer(const std::optional<JsonObject>& description);

}  // namespace coupler
