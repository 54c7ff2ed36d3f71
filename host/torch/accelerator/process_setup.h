// Settings that the Accelerator makes once for the whole process. [any-thread], idempotent.
#pragma once

namespace coupler {

// Keeps large blocks in the process instead of returning them to the system after every step
// (glibc's malloc only; a preloaded allocator is left alone). Worth 1.5x on small models.
void keep_large_blocks();

// Lets the process end without LibTorch's destructors (see the definition).
void allow_fast_exit();

// Sets LibTorch's thread count to cores / local_world, at least 1, unless OMP_NUM_THREADS is set.
void limit_threads(int local_world);

}  // namespace coupler
