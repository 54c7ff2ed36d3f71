// BufferPool: memory for units and for gradients on their way. Host memory is kept for reuse, since
// fresh pages cost three times a copy into warm ones; a device's comes from LibTorch's allocator
// for it, which does the same. [any-thread]
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace coupler {

// Where a pool's memory is from.
enum class PoolMemory {
  kHeap,    // which keeps what is given back, warm; aligned to 64
  kPages,   // the system's, for whom memory is scarce: buffers are taken by one thread and given
            // back by another, and each thread's heap would come to hold them all. Aligned to a
            // page, so that disks can write to it
  kDevice,  // LibTorch's allocator
};

struct ReleaseMemory {
  PoolMemory from = PoolMemory::kHeap;
  size_t bytes = 0;
  bool counted = false;   // by the memory limit
  void* block = nullptr;  // of the heap, in which the memory lies aligned
  c10::DataPtr on_device;
  void operator()(void* memory) const;
};

class BufferPool {
  using Memory = std::unique_ptr<void, ReleaseMemory>;

 public:
  // Memory taken from a pool, given back by the destructor. Movable; the pool must outlive it.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer();
    void* data() const { return memory_.get(); }
    size_t bytes() const { return bytes_; }
    explicit operator bool() const { return pool_ != nullptr; }

   private:
    friend class BufferPool;
    BufferPool* pool_ = nullptr;
    Memory memory_;
    size_t bytes_ = 0;  // of the memory: at least what was asked for
  };

  explicit BufferPool(PoolMemory from = PoolMemory::kHeap) : from_(from) {}
  // The CPU's is the heap's.
  explicit BufferPool(c10::Device device)
      : from_(device.is_cpu() ? PoolMemory::kHeap : PoolMemory::kDevice), device_(device) {}

  // At least bytes, contents unspecified. Throws std::bad_alloc when memory is out.
  Buffer take(size_t bytes);

  c10::Device device() const { return device_; }  // of its memory

  // The most that was out at one time, in bytes.
  size_t peak_bytes() const;

 private:
  struct Free {
    Memory memory;
    size_t bytes = 0;
  };
  Memory make(size_t bytes) const;
  void give_back(Memory memory, size_t bytes);

  const PoolMemory from_;
  const c10::Device device_ = c10::kCPU;
  mutable std::mutex mutex_;
  std::vector<Free> free_;
  size_t free_bytes_ = 0, out_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace coupler
