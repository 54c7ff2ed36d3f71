// The weights in the numbered files of an index, model.safetensors.index.json or
// pytorch_model.bin.index.json. Plain function, any thread.
#pragma once

#include <string>

#include "weights/weight_source.h"

namespace coupler {

// `key` as open_torch has it, for each file. Throws Error(kIo) where a file is missing, where one
// lacks a tensor that the index says it has, and where it has one that the index does not.
WeightSource open_index(const std::string& path, const std::string& key);

}  // namespace coupler
