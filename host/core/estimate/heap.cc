#include "estimate/heap.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>

namespace coupler {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHeader = 16;  // before the address that the program gets
constexpr uint64_t kLeast = 32;   // minimum size of a block

uint64_t rounded(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

// Like glibc's memalign: looks for a block with room for any alignment shift, and frees what the
// shift leaves before and after it. So a freed block is too small for another of its own size,
// unless it was merged with a neighbor.
uint64_t HeapModel::take(uint64_t bytes, HeapUse /*use*/) {
  const uint64_t size = std::max(rounded(bytes + kHeader / 2, kHeader), kLeast);
  const uint64_t need = size + kTensorAlignment + kLeast;
  const auto fits = free_.lower_bound({need, 0});
  if (fits != free_.end()) {
    const uint64_t begin = fits->second;
    const auto found = blocks_.find(begin);
    const Block block = found->second;
    forget_free(found);
    blocks_.erase(found);
    return place(begin, block.size, size, block.touched);
  }
  if (bytes >= kMapped && top_ + need > end_) {
    const uint64_t address = next_mapping_++;
    mappings_[address] = rounded(bytes + kHeader, kPage);
    mapped_ += mappings_[address];
    return address;
  }
  const uint64_t address = top_;
  top_ += need;
  end_ = std::max(end_, top_);
  return place(address, need, size, need);
}

// Places a block of `size` in the `room` bytes at `begin`, which are no longer in blocks_ or free_.
uint64_t HeapModel::place(uint64_t begin, uint64_t room, uint64_t size, uint64_t touched) {
  uint64_t address = rounded(begin + kHeader, kTensorAlignment) - kHeader;
  if (address != begin && address - begin < kLeast) address += kTensorAlignment;
  const uint64_t before = address - begin;
  uint64_t own = room - before;
  const uint64_t remainder = own > size + kLeast ? own - size : 0;
  own -= remainder;
  blocks_[address] = {.size = own, .free = false, .touched = 0};
  live_ += own;
  touched_end_ = std::max(touched_end_, address + own);
  if (remainder > 0) {
    const uint64_t used = before + own;
    make_free(address + own,
              {remainder, true, touched > used ? std::min(touched - used, remainder) : 0});
  }
  if (before > 0) make_free(begin, {before, true, std::min(before, touched)});
  return address;
}

void HeapModel::give_back(uint64_t address) {
  if (const auto mapping = mappings_.find(address); mapping != mappings_.end()) {
    mapped_ -= mapping->second;
    mappings_.erase(mapping);
    return;
  }
  const uint64_t size = blocks_.at(address).size;
  live_ -= size;
  make_free(address, {size, true, size});
}

void HeapModel::forget_free(Blocks::iterator block) {
  free_.erase({block->second.size, block->first});
  touched_free_ -= block->second.touched;
}

// Merges the block with its free neighbors, and with the top if it borders on it.
void HeapModel::make_free(uint64_t address, Block block) {
  const auto next = blocks_.find(address + block.size);
  if (next != blocks_.end() && next->second.free) {
    forget_free(next);
    block.size += next->second.size;
    block.touched += next->second.touched;
    blocks_.erase(next);
  }
  auto here = blocks_.insert_or_assign(address, block).first;
  if (here != blocks_.begin()) {
    const auto before = std::prev(here);
    if (before->second.free) {
      forget_free(before);
      address = before->first;
      block.size += before->second.size;
      block.touched += before->second.touched;
      blocks_.erase(here);
      here = blocks_.insert_or_assign(address, block).first;
    }
  }
  if (address + block.size == top_) {
    if (touched_end_ < address) touched_end_ = address;
    top_ = address;
    blocks_.erase(here);
    return;
  }
  free_.emplace(block.size, address);
  touched_free_ += block.touched;
}

void HeapModel::trim() {
  for (auto& [address, block] : blocks_) {
    if (block.free) block.touched = 0;
  }
  touched_free_ = 0;
  end_ = touched_end_ = top_;
}

namespace {

// accelerator/accelerator.cc
constexpr int kMmapThreshold = 32 << 20;
constexpr int kTrimThreshold = 1 << 30;

uint64_t heap_end() { return reinterpret_cast<uint64_t>(::sbrk(0)); }

}  // namespace

// First fills the free blocks that the process's past left in the heap.
ProcessHeap::ProcessHeap() {
  ::mallopt(M_MMAP_THRESHOLD, kMmapThreshold);
  ::mallopt(M_TRIM_THRESHOLD, kTrimThreshold);
  for (size_t size = size_t{16} << 20; size >= 64; size /= 2) {
    const uint64_t end = heap_end();
    while (heap_end() == end && ::mallinfo2().fordblks > size) {
      if (std::malloc(size - 16) == nullptr) throw std::bad_alloc();
    }
  }
  begin_ = heap_end();
}

ProcessHeap::~ProcessHeap() = default;  // the process ends soon

Helper::Helper() : thread_([this] { work(); }) {}

Helper::~Helper() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void* Helper::take(uint64_t bytes) {
  std::unique_lock lock(mutex_);
  wanted_ = bytes;
  changed_.notify_all();
  changed_.wait(lock, [this] { return wanted_ == 0; });
  if (given_ == nullptr) throw std::bad_alloc();
  return given_;
}

void Helper::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return wanted_ != 0 || over_; });
    if (over_) return;
    given_ = std::malloc(wanted_);
    wanted_ = 0;
    changed_.notify_all();
  }
}

// The C library describes the heaps after the first only in a report.
void* ProcessHeap::take_aside(uint64_t bytes) {
  void* const memory = helper_.take(bytes);
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const report = ::open_memstream(&text, &size);
  if (report == nullptr) throw std::bad_alloc();
  ::malloc_info(0, report);
  std::fclose(report);
  aside_ = 0;
  const char* at = std::strstr(text, "</heap>");  // the first heap's
  while (at != nullptr && (at = std::strstr(at, "<heap nr=")) != nullptr) {
    at = std::strstr(at, "<system type=\"current\" size=\"");
    if (at == nullptr) break;
    aside_ += std::strtoull(at + std::strlen("<system type=\"current\" size=\""), nullptr, 10);
  }
  std::free(text);
  return memory;
}

uint64_t ProcessHeap::take(uint64_t bytes, HeapUse use) {
  void* memory = nullptr;
  const uint64_t pooled = rounded(bytes, kTensorAlignment) + kTensorAlignment;
  if (use == HeapUse::kPoolAside) {
    memory = take_aside(pooled);
  } else if (use == HeapUse::kPool) {
    memory = std::malloc(pooled);
    if (memory == nullptr) throw std::bad_alloc();
  } else if (::posix_memalign(&memory, kTensorAlignment, bytes) != 0) {
    throw std::bad_alloc();
  }
  const auto address = reinterpret_cast<uint64_t>(memory);
  const uint64_t size = ::malloc_usable_size(memory);
  live_ += size;
  // The header tells whether a block is mapped separately.
  const bool mapped = (static_cast<const uint64_t*>(memory)[-1] & 2) != 0;
  if (mapped) mapped_bytes_ += size;
  taken_[address] = {memory, mapped};
  return address;
}

void ProcessHeap::give_back(uint64_t address) {
  const auto found = taken_.find(address);
  const Taken block = found->second;
  const uint64_t size = ::malloc_usable_size(block.memory);
  live_ -= size;
  if (block.mapped) mapped_bytes_ -= size;
  taken_.erase(found);
  std::free(block.memory);
}

void ProcessHeap::trim() {
  ::malloc_trim(0);
  trimmed_ = free_bytes();
}

uint64_t ProcessHeap::free_bytes() const { return ::mallinfo2().fordblks; }

// Sizes are similar to a handle, its storage and a graph node. The newest are freed first.
void ProcessHeap::set_objects(uint64_t bytes) {
  constexpr size_t kSizes[] = {208, 96, 48, 320, 64};
  while (object_bytes_ < bytes) {
    objects_.push_back(std::malloc(kSizes[objects_.size() % std::size(kSizes)]));
    object_bytes_ += ::malloc_usable_size(objects_.back());
  }
  while (object_bytes_ > bytes && !objects_.empty()) {
    object_bytes_ -= ::malloc_usable_size(objects_.back());
    std::free(objects_.back());
    objects_.pop_back();
  }
}

uint64_t ProcessHeap::resident() const {
  const uint64_t extent = heap_end() - begin_ + mapped_bytes_ + aside_;
  return trimmed_ == 0 ? extent : extent - std::min({extent, trimmed_, free_bytes()});
}

}  // namespace coupler
