// Heap: how much memory a process's heap takes for a sequence of allocations: a model of it, or the
// C library's own heap, whose blocks are allocated but never touched. One thread.
#pragma once

#include <cstdint>

namespace coupler {

// LibTorch's alignment of host memory.
inline constexpr uint64_t kTensorAlignment = 64;

enum class HeapUse {
  kTensor,     // as LibTorch allocates
  kPool,       // as residency/buffer_pool.h does
  kPoolAside,  // likewise, but on another thread than the training thread, for which the C library
               // has a separate heap
};

class Heap {
 public:
  Heap() = default;
  virtual ~Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Returns an address for give_back().
  virtual uint64_t take(uint64_t bytes, HeapUse use) = 0;
  virtual void give_back(uint64_t address) = 0;
  // Returns free memory to the system.
  virtual void trim() = 0;
  // Sets how many bytes of small objects (tensor handles, graph nodes) exist now.
  virtual void set_objects(uint64_t bytes) = 0;

  virtual uint64_t resident() const = 0;
  virtual uint64_t live() const = 0;
};

}  // namespace coupler
