// The weights in the numbered files of an index, model.safetensors.index.json or
// pytorch_model.bin.index.json. Plain function, any thread.
#pragma once

#include <string>

#include "weights/weight_source.h"

namespace coupler {

// `key`: see open_torch; applies to each file. Throws Error(kIo) if a file is missing, lacks a
// tensor that the index assigns to it, or has one that the index does not list.
WeightSource open_index(const std::string& path, const std::string& key);

}  // namespace coupler
