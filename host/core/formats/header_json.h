// Parses the JSON of a safetensors header by events, without building a document. Rejects duplicate
// keys, nesting, unknown fields and wrong types on the way. Internal to safetensors_header.cc.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "formats/safetensors_header.h"

namespace coupler::safetensors {

// What is wrong with a header: the tensor concerned (may be empty) and the rule it breaks.
struct Problem {
  std::string tensor;
  std::string rule;
};

// Fills header.tensors (in JSON order), header.index and header.metadata; the layout is not checked
// yet. Returns the first problem.
std::optional<Problem> read_header_json(std::string_view json, Header& header);

}  // namespace coupler::safetensors
