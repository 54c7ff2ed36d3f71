// Finds a model's weights, whichever program saved them. Plain function, any thread.
#pragma once

#include <cstddef>
#include <string>

#include "weights/weight_source.h"

namespace coupler {

struct OpenWeights {
  size_t model = 0;  // in a checkpoint of several models
  std::string key;   // the dictionary below the root of a torch.save file; "": the root
};

// Accepts a .safetensors file; a .bin, .pt or .pth file written by torch.save; an index of several;
// a folder of these; a checkpoint of Coupler, Accelerate or DeepSpeed (as docs/checkpoints.md lists
// them). Throws Error(kUnsupported) with a hint for known layouts that are not supported, kIo for
// damaged files, kInvalidArgument for options that do not apply.
WeightSource open_weights(const std::string& path, const OpenWeights& options);

}  // namespace coupler
