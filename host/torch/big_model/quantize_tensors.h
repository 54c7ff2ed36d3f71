// Quantizes a model's tensors before they are placed. Plain functions, one thread.
#pragma once

#include <coupler/big_model.h>

#include <memory>
#include <string>
#include <vector>

#include "big_model/host_value.h"
#include "strategy/model.h"
#include "weights/weight_source.h"

namespace coupler::big_model {

// Sets `packed` of each tensor to be quantized. Throws as choose_layers does.
void choose_packed(const strategy::Model& model, const QuantizeOptions& options,
                   std::vector<PlacedTensor>& tensors);

// Packs these tensors: their values become the packed bytes, in memory or, for tensors on the disk,
// in a file of offload_folder, which is written unless it exists. Parameters no longer require
// gradients. Returns the source of the values, which must be kept; null if all are in memory.
// Throws Error(kInvalidArgument) if a folder is needed but not given, and for non-finite weights;
// Error(kIo).
std::shared_ptr<const weights::WeightSource> pack_tensors(const QuantizeOptions& options,
                                                          const std::string& offload_folder,
                                                          std::vector<PlacedTensor>& tensors);

}  // namespace coupler::big_model
