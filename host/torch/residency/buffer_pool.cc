#include "residency/buffer_pool.h"

#include <c10/core/DeviceGuard.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "base/units.h"
#include "device/device_memory.h"
#include "residency/peer_memory.h"

namespace coupler::residency {

// Never destroyed: memory is returned until the very end of the process.
MemoryBudget& MemoryBudget::of_process() {
  static auto* const kBudget = new MemoryBudget;
  return *kBudget;
}

void MemoryBudget::start(uint64_t limit, uint64_t base, int rank) {
  rank_ = rank;
  if (!on()) {
    base_ = base;
    held_ = base;
  }
  limit_ = limit;
}

void MemoryBudget::expect(std::string known, std::string hint) {
  known_ = std::move(known);
  hint_ = std::move(hint);
}

void MemoryBudget::take(MemoryPart part, size_t bytes) {
  const uint64_t held = held_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (held > limit_.load(std::memory_order_relaxed)) {
    held_.fetch_sub(bytes, std::memory_order_relaxed);
    refuse(part, bytes);
  }
  parts_[static_cast<size_t>(part)].fetch_add(static_cast<int64_t>(bytes),
                                              std::memory_order_relaxed);
}

void MemoryBudget::note_more(MemoryPart part, size_t bytes) noexcept {
  held_.fetch_add(bytes, std::memory_order_relaxed);
  parts_[static_cast<size_t>(part)].fetch_add(static_cast<int64_t>(bytes),
                                              std::memory_order_relaxed);
}

// Called between steps, so memory taken meanwhile does not matter.
void MemoryBudget::set_resident(uint64_t bytes) {
  const uint64_t counted = held_ - base_;
  const uint64_t base = bytes > counted ? bytes - counted : 0;
  held_ += base - base_;
  base_ = base;
}

void MemoryBudget::give_back(MemoryPart part, size_t bytes) noexcept {
  held_.fetch_sub(bytes, std::memory_order_relaxed);
  parts_[static_cast<size_t>(part)].fetch_sub(static_cast<int64_t>(bytes),
                                              std::memory_order_relaxed);
}

void MemoryBudget::refuse(MemoryPart part, size_t bytes) const {
  const auto size_of = [&](MemoryPart of) {
    return format_byte_size(
        static_cast<uint64_t>(std::max<int64_t>(parts_[static_cast<size_t>(of)].load(), 0)));
  };
  throw Error(
      ErrorCode::kOutOfMemory,
      fmt::format("rank {}: {} more for {} would exceed memory.limit, {}: tensors hold {}{}, "
                  "gathered units and buffers {}, and the process itself {}",
                  rank_, format_byte_size(bytes),
                  part == MemoryPart::kTensors ? "a tensor" : "a gathered unit or buffer",
                  format_byte_size(limit_), size_of(MemoryPart::kTensors), known_,
                  size_of(MemoryPart::kBuffers), format_byte_size(base_)),
      {.rank = rank_, .subject = "memory.limit", .hint = hint_});
}

namespace {
constexpr size_t kPoolAlignment = 64;
}  // namespace

void ReleaseMemory::operator()(void* memory) const {
  if (from == PoolMemory::kDevice) {
    // Work queued on the thread's stream may still be reading it.
    device::hold_for_stream(on_device);
    return;
  }
  if (of_peers != nullptr) return;
  from == PoolMemory::kHeap ? std::free(block) : void(::munmap(memory, bytes));
  if (counted) MemoryBudget::of_process().give_back(MemoryPart::kBuffers, bytes);
}

// Asks for some and frees it: without any, all buffers are of one kind.
void BufferPool::use_memory_of(const std::shared_ptr<comm::Communicator>& comm) {
  if (from_ == PoolMemory::kHeap && peer_memory(comm.get(), kLeastPeerBytes) != nullptr)
    comm_ = comm;
}

BufferPool::Block BufferPool::make(size_t bytes, bool to_send) const {
  if (from_ == PoolMemory::kDevice) {
    const c10::DeviceGuard guard(device_);
    c10::DataPtr data = c10::GetAllocator(device_.type())->allocate(std::max<size_t>(bytes, 1));
    void* const memory = data.get();
    return {{memory, ReleaseMemory{from_, bytes, false, nullptr, std::move(data)}}, bytes};
  }
  if (to_send) {
    if (std::shared_ptr<void> memory = peer_memory(comm_.get(), bytes))
      return {{memory.get(), ReleaseMemory{from_, bytes, false, nullptr, {}, memory}}, bytes, true};
  }
  const size_t size =
      (std::max<size_t>(bytes, 1) + kPoolAlignment - 1) / kPoolAlignment * kPoolAlignment;
  MemoryBudget& budget = MemoryBudget::of_process();
  const bool counted = budget.on();
  if (counted) budget.take(MemoryPart::kBuffers, size);
  void *memory = nullptr, *block = nullptr;
  if (from_ == PoolMemory::kHeap) {
    // We align it ourselves: glibc's aligned_alloc searches for more than it takes, so a freed
    // block would never fit another buffer of its size, and the heap would grow to hold every unit.
    size_t room = size + kPoolAlignment;
    memory = block = std::malloc(room);
    if (memory != nullptr) memory = std::align(kPoolAlignment, size, memory, room);
  } else {
    memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) memory = nullptr;
  }
  if (memory == nullptr) {
    if (counted) budget.give_back(MemoryPart::kBuffers, size);
    throw std::bad_alloc();
  }
  return {{memory, ReleaseMemory{from_, size, counted, block, {}}}, bytes, to_send};
}

BufferPool::Buffer& BufferPool::Buffer::operator=(Buffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(block_, other.block_);
  return *this;
}

BufferPool::Buffer::~Buffer() {
  if (pool_ != nullptr) pool_->give_back(std::move(block_));
}

at::Tensor BufferPool::Buffer::as(c10::ScalarType type, int64_t numel) const {
  return device::over_memory(data(), numel, type, pool_->device());
}

BufferPool::Buffer BufferPool::take_to_send(size_t bytes) {
  return take_block(bytes, comm_ != nullptr && bytes >= kLeastPeerBytes);
}

BufferPool::Buffer BufferPool::take_block(size_t bytes, bool to_send) {
  Buffer result;
  const std::lock_guard lock(mutex_);
  result.block_ = free_.take(
      bytes, [&] { return make(bytes, to_send); }, [](Block) {},
      [&](const Block& kept) { return kept.to_send == to_send; });
  result.pool_ = this;
  return result;
}

void BufferPool::give_back(Block block) {
  const std::lock_guard lock(mutex_);
  // The device's allocator keeps what `block` returns to it.
  free_.give_back(block, from_ != PoolMemory::kDevice);
}

size_t BufferPool::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return free_.peak_bytes();
}

}  // namespace coupler::residency
