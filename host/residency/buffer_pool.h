// BufferPool: host memory for gathered units and for gradients on their way, kept for reuse, since
// fresh pages cost three times a copy into warm ones. [any-thread]
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <mutex>
#include <vector>

namespace coupler {

class BufferPool {
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
    c10::DataPtr memory_;
    size_t bytes_ = 0;  // of the memory: at least what was asked for
  };

  // At least bytes, aligned to 64, contents unspecified. Throws c10::Error when memory is out.
  Buffer take(size_t bytes);

  // The most that was out at one time, in bytes.
  size_t peak_bytes() const;

 private:
  struct Free {
    c10::DataPtr memory;
    size_t bytes = 0;
  };
  void give_back(c10::DataPtr memory, size_t bytes);

  mutable std::mutex mutex_;
  std::vector<Free> free_;
  size_t free_bytes_ = 0, out_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace coupler
