// Rejects unsupported parts of a tokenizer.json. Safe to call from any thread. Does not depend on
// LibTorch.
#pragma once

#include <string>

#include "json_file.h"

namespace coupler {

// Throws Error(kUnsupported): "FILE: normalizer: 'Precompiled' is not supported; supported: …".
[[noreturn]] void refuse_kind(const JsonObject& description, const std::string& those_that_are);

}  // namespace coupler
