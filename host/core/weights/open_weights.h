// Finds a model's weights, whichever program saved them. Plain function, any thread.
#pragma once

#include <cstddef>
#include <string>

#include "weights/weight_source.h"

namespace coupler::weights {

// The weights in a safetensors file. Plain function, any thread.

// Metadata strings that name a tensor of the file are aliases of that tensor, as Python's
// safetensors writes tied weights. Throws Error(kIo) naming the file.
WeightSource open_safetensors(const std::string& path);

// The weights in the numbered files of an index, model.safetensors.index.json or
// pytorch_model.bin.index.json. Plain function, any thread.

// `key`: see open_torch; applies to each file. Throws Error(kIo) if a file is missing, lacks a
// tensor that the index assigns to it, or has one that the index does not list.
WeightSource open_index(const std::string& path, const std::string& key);

struct OpenWeights {
  size_t model = 0;  // in a checkpoint of several models
  std::string key;   // the dictionary below the root of a torch.save file; "": the root
};

// Accepts a .safetensors file; a .bin, .pt or .pth file written by torch.save; an index of several;
// a folder of these; a checkpoint of Coupler, Accelerate or DeepSpeed (as docs/checkpoints.md lists
// them). Throws Error(kUnsupported) with a hint for known layouts that are not supported, kIo for
// damaged files, kInvalidArgument for options that do not apply.
WeightSource open_weights(const std::string& path, const OpenWeights& options);

}  // namespace coupler::weights
