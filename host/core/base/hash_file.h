// Hashes a file that may be larger than memory. Plain function, any thread.
#pragma once

#include <string>

#include "base/durable_file.h"

namespace coupler::checkpoint {

// Reads the file sequentially. Throws Error(kIo) if it cannot be read.
WrittenFile hash_file(const std::string& path);

}  // namespace coupler::checkpoint
