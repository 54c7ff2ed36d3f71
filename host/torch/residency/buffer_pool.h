// BufferPool: memory for units and for gradients in flight. It keeps host memory for reuse, since
// fresh pages cost three times as much as a copy into warm ones. Device memory comes from
// LibTorch's allocator for the device, which also keeps it. [any-thread]
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "residency/free_list.h"

namespace coupler::comm {
class Communicator;
}

namespace coupler::residency {

// MemoryBudget: how much memory this process may hold ([memory] limit), and what holds it. Off and
// unused until start(). [any-thread], except that only the training loop calls start(), expect()
// and set_resident().

enum class MemoryPart {
  kTensors,  // all that LibTorch allocates
  kBuffers,  // gathered units, gradients in flight, blocks between memory and a disk
};

class MemoryBudget {
 public:
  static MemoryBudget& of_process();

  // Starts counting what is taken. base: bytes that the process already holds, its code included.
  // Later calls change only the limit.
  void start(uint64_t limit, uint64_t base, int rank);
  bool on() const { return limit_.load(std::memory_order_relaxed) != 0; }

  // For the error message: what is known about the tensors, and what would need less memory.
  void expect(std::string known, std::string hint);

  // Throws Error(kOutOfMemory) if that would exceed the limit; then nothing is taken.
  void take(MemoryPart part, size_t bytes);
  // Counts what the C library allocated beyond the requested size.
  void note_more(MemoryPart part, size_t bytes) noexcept;
  void give_back(MemoryPart part, size_t bytes) noexcept;
  // Sets the bytes resident now; those not counted are attributed to the process itself.
  void set_resident(uint64_t bytes);

 private:
  [[noreturn]] void refuse(MemoryPart part, size_t bytes) const;

  std::atomic<uint64_t> limit_{0}, held_{0};  // base included
  std::array<std::atomic<int64_t>, 2> parts_{};
  std::atomic<uint64_t> base_{0};
  int rank_ = 0;
  std::string known_, hint_;
};

// Where a pool's memory comes from.
enum class PoolMemory {
  kHeap,    // keeps freed memory warm; aligned to 64
  kPages,   // mapped from the system, for when memory is scarce: one thread takes buffers and
            // another returns them, so each thread's heap would grow to hold them all. Aligned to
            // a page, so that disks can write to it
  kDevice,  // LibTorch's allocator
};

struct ReleaseMemory {
  PoolMemory from = PoolMemory::kHeap;
  size_t bytes = 0;
  bool counted = false;   // by the memory limit
  void* block = nullptr;  // the heap block that contains the aligned memory
  c10::DataPtr on_device;
  std::shared_ptr<void> of_peers = nullptr;  // reached by other ranks; null: it is not
  void operator()(void* memory) const;
};

class BufferPool {
  struct Block {
    std::unique_ptr<void, ReleaseMemory> memory;
    size_t bytes = 0;      // at least the requested size
    bool to_send = false;  // taken from the communicator, if it had room
  };

 public:
  // Memory taken from a pool; the destructor returns it. Movable; the pool must outlive it.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer();
    void* data() const { return block_.memory.get(); }
    size_t bytes() const { return block_.bytes; }
    // Its beginning as a tensor on the pool's device; this must outlive it.
    at::Tensor as(c10::ScalarType type, int64_t numel) const;
    explicit operator bool() const { return pool_ != nullptr; }

   private:
    friend class BufferPool;
    BufferPool* pool_ = nullptr;
    Block block_;
  };

  explicit BufferPool(PoolMemory from = PoolMemory::kHeap) : from_(from) {}
  // Memory of the CPU comes from the heap.
  explicit BufferPool(c10::Device device)
      : from_(device.is_cpu() ? PoolMemory::kHeap : PoolMemory::kDevice), device_(device) {}

  // From now on, memory to send is such that the peers of `comm` reach it, if its backend has any.
  // Call it before take_to_send().
  void use_memory_of(const std::shared_ptr<comm::Communicator>& comm);

  // Returns at least `bytes` bytes, contents unspecified. Throws std::bad_alloc if none are left.
  Buffer take(size_t bytes) { return take_block(bytes, /*to_send=*/false); }
  // The same for what peers read. Anything else should not be there: what the kernel does for
  // memory that processes share, page by page, costs more than a copy of it.
  Buffer take_to_send(size_t bytes);

  c10::Device device() const { return device_; }  // of its memory

  // The most bytes ever in use at one time.
  size_t peak_bytes() const;

 private:
  Buffer take_block(size_t bytes, bool to_send);
  Block make(size_t bytes, bool to_send) const;
  void give_back(Block block);

  const PoolMemory from_;
  const c10::Device device_ = c10::kCPU;
  std::shared_ptr<comm::Communicator> comm_;  // that has memory for what is sent; null: none
  mutable std::mutex mutex_;
  FreeList<Block> free_;
};

}  // namespace coupler::residency
