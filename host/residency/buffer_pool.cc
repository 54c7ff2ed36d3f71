#include "residency/buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "residency/memory_budget.h"

namespace coupler {

void ReleaseMemory::operator()(void* memory) const {
  from == PoolMemory::kHeap ? std::free(memory) : void(::munmap(memory, bytes));
  if (counted) MemoryBudget::of_process().give_back(MemoryPart::kBuffers, bytes);
}

BufferPool::Memory BufferPool::make(size_t bytes) const {
  const size_t size = (std::max<size_t>(bytes, 1) + 63) / 64 * 64;
  MemoryBudget& budget = MemoryBudget::of_process();
  const bool counted = budget.on();
  if (counted) budget.take(MemoryPart::kBuffers, size);
  void* memory = nullptr;
  if (from_ == PoolMemory::kHeap) {
    memory = std::aligned_alloc(64, size);
  } else {
    memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) memory = nullptr;
  }
  if (memory == nullptr) {
    if (counted) budget.give_back(MemoryPart::kBuffers, size);
    throw std::bad_alloc();
  }
  return Memory(memory, ReleaseMemory{from_, size, counted});
}

BufferPool::Buffer& BufferPool::Buffer::operator=(Buffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

BufferPool::Buffer::~Buffer() {
  if (pool_ != nullptr) pool_->give_back(std::move(memory_), bytes_);
}

BufferPool::Buffer BufferPool::take(size_t bytes) {
  Buffer result;
  const std::lock_guard lock(mutex_);
  // The smallest that is large enough, and not so large that it would waste a quarter.
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->bytes < bytes || it->bytes - bytes > bytes / 4) continue;
    if (best == free_.end() || it->bytes < best->bytes) best = it;
  }
  if (best != free_.end()) {
    result.memory_ = std::move(best->memory);
    result.bytes_ = best->bytes;
    free_bytes_ -= best->bytes;
    free_.erase(best);
  } else {
    // What is kept must not raise the peak: what is out and what is kept stay below it together.
    while (!free_.empty() && out_bytes_ + free_bytes_ + bytes > peak_bytes_) {
      free_bytes_ -= free_.front().bytes;
      free_.erase(free_.begin());
    }
    result.memory_ = make(bytes);
    result.bytes_ = bytes;
  }
  result.pool_ = this;
  out_bytes_ += result.bytes_;
  peak_bytes_ = std::max(peak_bytes_, out_bytes_);
  return result;
}

void BufferPool::give_back(Memory memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  out_bytes_ -= bytes;
  free_bytes_ += bytes;
  free_.push_back({std::move(memory), bytes});
}

size_t BufferPool::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_bytes_;
}

}  // namespace coupler
