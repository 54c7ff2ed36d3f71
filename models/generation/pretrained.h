// What all models out of transformers' folders have in common: their dtype, and where weights go.
// Plain functions of one thread.
#pragma once

#include <coupler/model_config.h>
#include <coupler/pipeline.h>

#include <functional>
#include <string>

namespace coupler {

// The options' dtype, or config.json's, or float. Throws Error(kUnsupported) where the device that
// the options lead to cannot compute with it, naming those with which it can.
c10::ScalarType usable_dtype(const ModelConfig& config, const PretrainedOptions& options);

// Loads a model that was built with EmptyWeights.
DispatchedModel load_pretrained(torch::nn::Module& model, const std::string& folder,
                                const ModelConfig& config, const PretrainedOptions& options,
                                const char* block_class,
                                std::function<std::string(const std::string&)> names);

}  // namespace coupler
