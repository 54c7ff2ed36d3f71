// This process's resident memory, from /proc. [any-thread]
#pragma once

#include <cstdint>

namespace coupler {

// In bytes; 0 if /proc does not report it.
uint64_t resident_bytes();
uint64_t most_resident_bytes();  // since the process started

}  // namespace coupler
