// held_bytes: the memory that a bound on host memory leaves no model. [any-thread]
#pragma once

#include <cstdint>

namespace coupler::big_model {

// What the process holds once layers run: LibTorch's kernels come into memory when they are first
// used, in pieces of the page cache's choice, tens of MiB altogether. So some run first.
uint64_t held_bytes();

}  // namespace coupler::big_model
