// The weights in a safetensors file. Plain function, any thread.
#pragma once

#include <string>

#include "weights/weight_source.h"

namespace coupler {

// Metadata strings that name a tensor of the file are aliases of that tensor, as Python's
// safetensors writes tied weights. Throws Error(kIo) naming the file.
WeightSource open_safetensors(const std::string& path);

}  // namespace coupler
