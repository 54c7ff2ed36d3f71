// Source: where the units of one Residency come from (peers; a disk; a mapped file). Calls come
// from different threads; fill(), lend() and agree() one at a time.
#pragma once

#include <cstddef>

#include "residency/buffer_pool.h"

namespace coupler {

class Source {
 public:
  virtual ~Source() = default;

  // Which unit is filled next, when this process wants one: all ranks that share units must fill
  // the same one. May return another unit than wanted; the caller fills it and asks again. Throws
  // Error.
  virtual size_t agree(size_t wanted) { return wanted; }

  // Memory that holds the whole unit already, and does until take_back(); null where there is none,
  // and fill() is to be called. Throws Error.
  virtual void* lend([[maybe_unused]] size_t unit) { return nullptr; }
  virtual void take_back([[maybe_unused]] size_t unit) {}

  // Writes the whole unit to memory, which is the pool's; on a device it may be on its way in the
  // order of the thread's stream. Throws Error.
  virtual void fill(size_t unit, void* memory) = 0;

  // Takes over what this process is responsible for from memory, which holds the whole unit.
  virtual void store(size_t unit, const void* memory) = 0;

  // The same for a unit that was written to and is released (Unit::written); may return before it
  // is done. What goes wrong later is thrown by the next fill.
  virtual void put_away(size_t unit, BufferPool::Buffer memory) { store(unit, memory.data()); }
};

}  // namespace coupler
