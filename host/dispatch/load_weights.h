// Values for a model's tensors, from checkpoints and through offload folders. Plain functions of
// one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dispatch/placed_tensor.h"
#include "strategy/model.h"
#include "weights/weight_source.h"

namespace coupler {

// Fills in `value` of each tensor. Of those that the checkpoint has not, which strict forbids, the
// model's own or what its constructor gives; none where neither is there. The result is what
// values come from, and must be kept with them. Throws Error as match_weights and open_weights do.
std::shared_ptr<const WeightSource> take_values(const Model& model,
                                                std::vector<PlacedTensor>& tensors,
                                                const std::string& checkpoint, bool strict);

// The model's own values, for tensors that have some. Meta ones are left without.
void take_own_values(std::vector<PlacedTensor>& tensors);

// Puts what lies on the disk into an offload folder: values of other types are written there, as
// are those that lie in no safetensors file; others are named. With only_foreign what can be used
// in its file stays out of it. Does nothing where no tensor is to be written. Their values are the
// folder's afterwards. Returns what these come from, to be kept; null where nothing was written.
// Throws Error(kInvalidArgument) where a folder is needed and none is named; Error(kIo).
std::shared_ptr<const WeightSource> offload_to(const std::string& folder,
                                               std::vector<PlacedTensor>& tensors,
                                               bool only_foreign);

// Values of meta tensors on the disk from an offload folder. Others are left as they are.
std::shared_ptr<const WeightSource> take_offloaded(const std::string& folder,
                                                   std::vector<PlacedTensor>& tensors);

}  // namespace coupler
