// Shared by all models loaded from transformers' folders: their dtype and the placement of weights.
// Plain functions, used by one thread.
#pragma once

#include <coupler/model_config.h>
#include <coupler/text.h>

#include <functional>
#include <string>

namespace coupler {

// The options' dtype, or config.json's, or float. Throws Error(kUnsupported) if the device that the
// options select cannot compute with it; the message lists the dtypes with which it can.
c10::ScalarType usable_dtype(const ModelConfig& config, const PretrainedOptions& options);

// Loads the weights of a model that was built under EmptyWeights.
DispatchedModel load_pretrained(torch::nn::Module& model, const std::string& folder,
                                const ModelConfig& config, const PretrainedOptions& options,
                                const char* block_class,
                                std::function<std::string(const std::string&)> names);

}  // namespace coupler
