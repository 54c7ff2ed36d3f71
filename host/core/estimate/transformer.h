// The parameters of a transformer from its config.json, as Hugging Face's library names and sizes
// them (transformers 4.57, models/*/modeling_*.py). Pure function.
#pragma once

#include <string>
#include <vector>

#include "estimate/cut_model.h"
#include "estimate/step_log.h"
#include "sharding/tensor_plan.h"

namespace coupler::estimate {

// text: the contents of config.json; file: its name, for messages. Tied weights are listed once.
// Throws Error(kUnsupported) listing the known values of model_type, Error(kInvalidArgument) naming
// a key that is missing or wrong.
LoggedModel transformer_of(const std::string& text, const std::string& file);

// How the layers of that model are divided over a tensor group, as the model of the same name in
// coupler/language_model.h is. Empty: it has no plan. Throws as transformer_of.
std::vector<sharding::PlannedLayers> plan_of_transformer(const std::string& text,
                                                         const std::string& file, int ranks);

// The chain of layers of that model, as the model of the same name in coupler/language_model.h
// lists them for a pipeline: the embeddings, each block, and the norm with the head. Empty: it
// lists none. Throws as transformer_of.
LayerChain chain_of_transformer(const std::string& text, const std::string& file);

// A model with the modules that the parameters' dotted names imply; their types are unknown.
LoggedModel model_of_parameters(const std::string& name, std::vector<LoggedParameter> parameters);

}  // namespace coupler::estimate
