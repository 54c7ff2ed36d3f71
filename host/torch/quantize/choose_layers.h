// Chooses which parameters of a model are quantized, and their layouts. A pure function.
#pragma once

#include <coupler/big_model.h>

#include <vector>

#include "quantize/pack.h"
#include "strategy/model.h"

namespace coupler::quantization {

struct ChosenLayer {
  size_t parameter = 0;  // in Model::parameters
  bool transposed = false;
  PackedLayout layout;
};

// In the order of parameters. A weight shared with a module that is not linear stays unquantized:
// embeddings look up rows. Throws Error(kInvalidArgument) for invalid bits or group sizes, for a
// group size that does not divide a layer's inputs (the hint names those that do), for a part in
// `skip` that matches no layer, for a class whose weight is not a floating-point matrix, and if
// there is nothing to quantize.
std::vector<ChosenLayer> choose_layers(const strategy::Model& model,
                                       const QuantizeOptions& options);

}  // namespace coupler::quantization
