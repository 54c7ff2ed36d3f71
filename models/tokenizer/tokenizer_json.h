// Rejects unsupported parts of a tokenizer.json. Safe to call from any thread. Does not depend on
// LibTorch.
#pragma once

#include <string>

#include "json_file.h"
#include "tokenizer/unicode.h"

namespace coupler {

// Throws Error(kUnsupported): "FILE: normalizer: 'Precompiled' is not supported; supported: …".
[[noreturn]] void refuse_kind(const JsonObject& description, const std::string& those_that_are);

// The "pattern" of a part of tokenizer.json: {"String": "…"} or {"Regex": "…"}. Safe to call from
// any thread. Does not depend on LibTorch.

// Throws Error(kInvalidArgument) naming the part, if the pattern is missing or invalid.
inline unicode::Pattern pattern_of(const JsonObject& description) {
  const JsonObject pattern = description.object("pattern");
  if (pattern.has("String")) return unicode::Pattern::literal(pattern.text("String"));
  return unicode::Pattern::regex(pattern.text("Regex"), pattern.where());
}

}  // namespace coupler
