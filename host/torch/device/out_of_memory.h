// The error for a device that is out of memory. [any-thread]
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <string>

namespace coupler {

// Throws Error(kOutOfMemory). what: "the gathered parameters of unit 'blocks.3' (90 MiB)"; largest:
// the largest piece that must fit at once, or empty.
[[noreturn]] void throw_out_of_memory(const c10::OutOfMemoryError& cause, const std::string& what,
                                      const std::string& largest = {});

}  // namespace coupler
