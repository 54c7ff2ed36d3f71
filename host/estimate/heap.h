// Heap: how much memory a process's heap takes for a row of allocations: a model of it, or the C
// library's own, asked without touching what it gives. One thread.
#pragma once

#include <cstdint>

namespace coupler {

// LibTorch's, of host memory.
inline constexpr uint64_t kTensorAlignment = 64;

enum class HeapUse {
  kTensor,     // as LibTorch allocates
  kPool,       // as residency/buffer_pool.h does
  kPoolAside,  // likewise, by another thread than the one that trains, to which the C library gives
               // from a heap of its own
};

class Heap {
 public:
  Heap() = default;
  virtual ~Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // An address, to be given back.
  virtual uint64_t take(uint64_t bytes, HeapUse use) = 0;
  virtual void give_back(uint64_t address) = 0;
  // What is free goes back to the system.
  virtual void trim() = 0;
  // So many bytes of small objects (handles of tensors, nodes of the graph) are there now.
  virtual void set_objects(uint64_t bytes) = 0;

  virtual uint64_t resident() const = 0;
  virtual uint64_t live() const = 0;
};

}  // namespace coupler
