// Enforces memory.limit while a program runs: an allocator in front of LibTorch's own counts the
// memory of tensors. Installed once, and only if a limit is set. Any thread may allocate.
#pragma once

#include <cstdint>

namespace coupler {

// From now on, an allocation of host memory that would exceed the limit throws Error(kOutOfMemory).
void hold_memory_limit(uint64_t limit, int rank);

// Measures the process's uncounted memory again: a model made before the limit was installed is
// counted once prepare has moved it.
void measure_uncounted_memory();

}  // namespace coupler
