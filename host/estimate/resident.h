// What the kernel says of a process's memory. Pure functions of /proc. [any-thread]
#pragma once

#include <cstdint>

namespace coupler {

// Of this process, in bytes; 0 where /proc has no word on it.
uint64_t resident_bytes();
uint64_t most_resident_bytes();  // since it began

}  // namespace coupler
