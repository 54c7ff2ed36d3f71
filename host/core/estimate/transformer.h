// The parameters of a transformer from its config.json, as Hugging Face's library names and sizes
// them (transformers 4.57, models/*/modeling_*.py). Pure function.
#pragma once

#include <string>

#include "estimate/step_log.h"

namespace coupler::estimate {

// text: the contents of config.json; file: its name, for messages. Tied weights are listed once.
// Throws Error(kUnsupported) listing the known values of model_type, Error(kInvalidArgument) naming
// a key that is missing or wrong.
LoggedModel transformer_of(const std::string& text, const std::string& file);

// A model with the modules that the parameters' dotted names imply; their types are unknown.
LoggedModel model_of_parameters(const std::string& name, std::vector<LoggedParameter> parameters);

}  // namespace coupler::estimate
