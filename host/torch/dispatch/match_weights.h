// Matches a checkpoint's tensors with a model's. A pure function, any thread.
#pragma once

#include <string>
#include <vector>

#include "strategy/model.h"
#include "weights/weight_source.h"

namespace coupler {

// By index in the model; null for tensors that are not in the checkpoint.
struct MatchedWeights {
  std::vector<const WeightTensor*> parameters, buffers;
};

// Matches by name, including the names of tied tensors. Throws Error(kInvalidArgument) naming
// `checkpoint` and listing every tensor of another shape and, if strict, every missing or
// unexpected one.
MatchedWeights match_weights(const Model& model, const WeightSource& source,
                             const std::string& checkpoint, bool strict);

}  // namespace coupler
