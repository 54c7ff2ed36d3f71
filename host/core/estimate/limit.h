// memory.limit as a number. Pure function.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace coupler {

// In bytes; 0 if none is set. Throws Error(kConfig) naming the place where it was set.
uint64_t memory_limit_of(const Config& config);

}  // namespace coupler
