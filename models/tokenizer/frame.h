// Frame: the tokens that a model wants around a text, as tokenizer.json's "post_processor" says.
// Immutable, any thread. Sees no LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "json_file.h"

namespace coupler {

struct Frame {
  std::vector<int64_t> before, after;
};

// description: tokenizer.json's; of none, nothing is put around. Throws Error(kUnsupported) naming
// those that are there, where it is another.
Frame make_frame(const std::optional<JsonObject>& description);

}  // namespace coupler
