// The weights of a model in a Coupler checkpoint. Plain function, any thread.
#pragma once

#include <cstddef>
#include <string>

#include "weights/weight_source.h"

namespace coupler {

// Opens model number `model` of the checkpoint in that folder. Sharded tensors are whole, and reads
// verify the checksums. Throws Error as checkpoint::open_checkpoint; kInvalidArgument if there is
// no such model; kIo naming the tensor if parts of it are in no file, or in two.
WeightSource open_checkpoint_weights(const std::string& folder, size_t model);

}  // namespace coupler
