// How parts of a tokenizer.json are refused that are not there. Any thread. Sees no LibTorch.
#pragma once

#include <string>

#include "json_file.h"

namespace coupler {

// Throws Error(kUnsupported): "FILE: normalizer: 'Precompiled' is not there; those that are: …".
[[noreturn]] void refuse_kind(const JsonObject& description, const std::string& those_that_are);

}  // namespace coupler
