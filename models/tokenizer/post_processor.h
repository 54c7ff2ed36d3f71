// PostProcessor: the tokens to add around a text, from tokenizer.json's "post_processor".
// Immutable; safe to use from any thread. Does not depend on LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "json_file.h"

namespace coupler {

struct PostProcessor {
  std::vector<int64_t> before, after;
};

// description: tokenizer.json's; without one, nothing is added. Throws Error(kUnsupported), listing
// the supported types, for any other type.
PostProcessor make_post_processor(const std::optional<JsonObject>& description);

}  // namespace coupler
