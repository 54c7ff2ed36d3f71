// The weights of a model in a checkpoint of Coupler's. Plain function, any thread.
#pragma once

#include <cstddef>
#include <string>

#include "weights/weight_source.h"

namespace coupler {

// Of model number `model` of the checkpoint in that folder: tensors that ranks have divided are
// whole, and what is read is compared with the checksums. Throws Error as checkpoint::
// open_checkpoint; kInvalidArgument where there is no such model; kIo naming the tensor where parts
// of it are in no file, or in two.
WeightSource open_checkpoint_weights(const std::string& folder, size_t model);

}  // namespace coupler
