// BufferPool: host memory for units and for gradients on their way, kept for reuse, since fresh
// pages cost three times a copy into warm ones. From the system, not the heap: buffers are taken by
// one thread and given back by another, and each thread's heap would come to hold them all. It
// begins where a page does, so that disks can write to it. [any-thread]
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace coupler {

// Pages of the system, given back.
struct UnmapPages {
  size_t bytes = 0;
  void operator()(void* memory) const;
};

class BufferPool {
  using Memory = std::unique_ptr<void, UnmapPages>;

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

  static constexpr size_t kAlignment = 4096;

  // At least bytes, aligned to kAlignment, contents unspecified. Throws std::bad_alloc when
  // memory is out.
  Buffer take(size_t bytes);

  // The most that was out at one time, in bytes.
  size_t peak_bytes() const;

 private:
  struct Free {
    Memory memory;
    size_t bytes = 0;
  };
  static Memory map(size_t bytes);
  void give_back(Memory memory, size_t bytes);

  mutable std::mutex mutex_;
  std::vector<Free> free_;
  size_t free_bytes_ = 0, out_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace coupler
