// Which parameters of a model are quantised, and how they lie then. A pure function.
#pragma once

#include <coupler/quantize_options.h>

#include <vector>

#include "quantize/packed_layout.h"
#include "strategy/model.h"

namespace coupler {

struct ChosenLayer {
  size_t parameter = 0;  // in Model::parameters
  bool transposed = false;
  PackedLayout layout;
};

// In the order of parameters. A weight that another module than a linear one shares stays what it
// is: embeddings look rows up. Throws Error(kInvalidArgument) for other bits and group sizes than
// there are, for a group size that does not divide a layer's inputs, with what would, for a part in
// `skip` that names no layer, for a class whose weight is no matrix of floating numbers, and where
// there is nothing to quantise.
std::vector<ChosenLayer> choose_layers(const Model& model, const QuantizeOptions& options);

}  // namespace coupler
