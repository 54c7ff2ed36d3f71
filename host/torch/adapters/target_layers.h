// Which linear layers of a model an adapter is for. Plain functions, one thread.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "adapters/lora_layer.h"

namespace coupler::adapters {

// Which layers, as in LoraOptions.
struct TargetRules {
  std::vector<std::string> modules;
  std::string pattern;
  std::vector<std::string> exclude;
  std::vector<std::string> linear_classes, transposed_classes;
};

// In order of registration; a module with several names once, under the first. Throws
// Error(kInvalidArgument) naming a rule that matches nothing, or a module that cannot be adapted.
std::vector<TargetLayer> target_layers(const torch::nn::Module& model, const TargetRules& rules);

// The layers with these whole names, in the order of the names. Of the rules, only classes count.
// Throws Error(kInvalidArgument) naming one that the model lacks or that cannot be adapted; source:
// who names them.
std::vector<TargetLayer> layers_named(const torch::nn::Module& model,
                                      const std::vector<std::string>& names,
                                      const TargetRules& rules, const std::string& source);

// A module has these as submodules, see LoraMatrix.
bool is_adapted(const torch::nn::Module& module);

}  // namespace coupler::adapters
