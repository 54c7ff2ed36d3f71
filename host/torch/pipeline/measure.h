// The cost of each layer, for the cut into stages. Used by the training thread.
#pragma once

#include <vector>

#include "pipeline/chain.h"

namespace coupler {

// Bytes of each layer's parameters; a tied one counts in every layer, as it is kept there.
std::vector<double> bytes_of_layers(const Chain& chain, const Model& model);

// Seconds of each layer's forward on one micro-batch, the least of a few runs, in evaluation mode,
// so that no state changes. Throws Error(kUsage) if the model's weights are not in memory.
std::vector<double> seconds_of_layers(const Chain& chain, const Model& model,
                                      torch::nn::Module& module, const Values& example);

}  // namespace coupler
