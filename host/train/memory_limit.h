// memory.limit held while a program runs: an allocator in front of LibTorch's own counts what
// tensors take. Installed once, and only where a limit is set. Any thread allocates.
#pragma once

#include <cstdint>

namespace coupler {

// From now on an allocation of host memory that would pass the limit throws Error(kOutOfMemory).
void hold_memory_limit(uint64_t limit, int rank);

// What the process has beside what is counted is measured anew: a model that was made before the
// limit is counted now, where prepare has moved it.
void measure_uncounted_memory();

}  // namespace coupler
