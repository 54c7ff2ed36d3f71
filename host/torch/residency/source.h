// Source: where the units of one Residency come from (peers, a disk, a mapped file). Calls come
// from different threads; fill(), lend() and agree() are called one at a time.
#pragma once

#include <cstddef>

#include "residency/buffer_pool.h"

namespace coupler {

class Source {
 public:
  virtual ~Source() = default;

  // Agrees which unit is filled next when this process wants one: all ranks that share units must
  // fill the same one. If the result is not `wanted`, the caller fills it and asks again. Throws
  // Error.
  virtual size_t agree(size_t wanted) { return wanted; }

  // Returns memory that already holds the whole unit, valid until take_back(); null if there is
  // none and fill() must be called. Throws Error.
  virtual void* lend([[maybe_unused]] size_t unit) { return nullptr; }
  virtual void take_back([[maybe_unused]] size_t unit) {}

  // Writes the whole unit to `memory`, which belongs to the pool; on a device the copy may still be
  // in flight on the thread's stream. Throws Error.
  virtual void fill(size_t unit, void* memory) = 0;

  // Copies the part that this process owns from `memory`, which holds the whole unit.
  virtual void store(size_t unit, const void* memory) = 0;

  // The same for a unit that was written to and is being released (Unit::written); may return
  // before it is done. The next fill() throws errors that occur later.
  virtual void put_away(size_t unit, BufferPool::Buffer memory) { store(unit, memory.data()); }
};

}  // namespace coupler
