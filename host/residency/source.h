// Source: where the units of one Residency come from (peers; later host memory, a mapped file).
// Calls are serialised by the Residency, but come from different threads.
#pragma once

#include <cstddef>

namespace coupler {

class Source {
 public:
  virtual ~Source() = default;

  // Which unit is filled next, when this process wants one: all ranks that share units must fill
  // the same one. May return another unit than wanted; the caller fills it and asks again. Throws
  // Error.
  virtual size_t agree(size_t wanted) { return wanted; }

  // Writes the whole unit to memory. Throws Error.
  virtual void fill(size_t unit, void* memory) = 0;

  // Takes over what this process is responsible for from memory, which holds the whole unit.
  virtual void store(size_t unit, const void* memory) = 0;
};

}  // namespace coupler
