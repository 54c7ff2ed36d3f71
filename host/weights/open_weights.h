// Finds a model's weights, whatever program has saved them. Plain function, any thread.
#pragma once

#include <cstddef>
#include <string>

#include "weights/weight_source.h"

namespace coupler {

struct OpenWeights {
  size_t model = 0;  // of a checkpoint of several models
  std::string key;   // the dictionary below the root of a file of torch.save's; "": the root
};

// A .safetensors file; a .bin, .pt or .pth file of torch.save's; an index of several; a folder of
// these; a checkpoint of Coupler, Accelerate or DeepSpeed (as docs/checkpoints.md lists them).
// Throws Error(kUnsupported) for layouts that are known and not read, with what to do, kIo for what
// is damaged, kInvalidArgument for options that do not fit.
WeightSource open_weights(const std::string& path, const OpenWeights& options);

}  // namespace coupler
