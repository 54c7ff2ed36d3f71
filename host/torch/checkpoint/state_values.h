// The values of a StateDict as JSON, as safetensors files of checkpoints and of Accelerator::save
// hold them in their metadata. Pure functions, any thread.
#pragma once

#include <coupler/state_dict.h>

#include <string>

namespace coupler::checkpoint {

// The key of the metadata.
inline constexpr const char* kValuesKey = "coupler.values";

// A JSON object. Infinity and NaN, which JSON lacks, become {"number": "inf"}.
std::string values_as_json(const StateDict& state);

// Sets what values_as_json wrote. Throws nlohmann::json::exception if the text is something else.
void set_values(StateDict& state, const std::string& text);

}  // namespace coupler::checkpoint
