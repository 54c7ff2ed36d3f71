// Quantises a model's tensors on their way to where they lie. Plain functions of one thread.
#pragma once

#include <coupler/quantize_options.h>

#include <memory>
#include <string>
#include <vector>

#include "dispatch/placed_tensor.h"
#include "strategy/model.h"
#include "weights/weight_source.h"

namespace coupler {

// Says of each tensor whether and how it is to lie packed. Throws as choose_layers.
void choose_packed(const Model& model, const QuantizeOptions& options,
                   std::vector<PlacedTensor>& tensors);

// Packs those: their values are the packed bytes afterwards, in memory or, of what lies on the
// disk, in a file of offload_folder, which is written unless it is there already. No parameter
// requires gradients any more. Returns what values come from, to be kept; null where that is
// memory. Throws Error(kInvalidArgument) where a folder is needed and none is named, and for
// weights that are not finite; Error(kIo).
std::shared_ptr<const WeightSource> pack_tensors(const QuantizeOptions& options,
                                                 const std::string& offload_folder,
                                                 std::vector<PlacedTensor>& tensors);

}  // namespace coupler
