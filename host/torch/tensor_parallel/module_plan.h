// The plan that a model's own modules have (coupler/tensor_parallel.h). Pure function.
#pragma once

#include <torch/nn/module.h>

#include <vector>

#include "sharding/tensor_plan.h"

namespace coupler::tensor_parallel {

// For tensor groups of this many ranks; empty if no module of the model has any.
std::vector<sharding::PlannedLayers> plan_of(const torch::nn::Module& model, int ranks);

}  // namespace coupler::tensor_parallel
