// The weights in a safetensors file. Plain function, any thread.
#pragma once

#include <string>

#include "weights/weight_source.h"

namespace coupler {

// Strings of the file's metadata that name a tensor of it are that tensor's other names, as
// Python's safetensors writes tied weights. Throws Error(kIo) naming the file.
WeightSource open_safetensors(const std::string& path);

}  // namespace coupler
