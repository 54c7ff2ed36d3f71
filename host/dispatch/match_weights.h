// Which of a checkpoint's tensors is which of a model's. A pure function, any thread.
#pragma once

#include <string>
#include <vector>

#include "strategy/model.h"
#include "weights/weight_source.h"

namespace coupler {

// By index of the model's; null for those that the checkpoint has not.
struct MatchedWeights {
  std::vector<const WeightTensor*> parameters, buffers;
};

// By names, those of tied tensors included. Throws Error(kInvalidArgument) naming `checkpoint` and
// listing every tensor that is of another shape and, where strict, every one that is missing or
// that the model does not have.
MatchedWeights match_weights(const Model& model, const WeightSource& source,
                             const std::string& checkpoint, bool strict);

}  // namespace coupler
