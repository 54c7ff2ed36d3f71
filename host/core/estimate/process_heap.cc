#include "estimate/process_heap.h"

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

// accelerator/process_setup.cc
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
  if (use == HeapUse::kPoolAside) {
    memory = take_aside(bytes + kTensorAlignment);
  } else if (use == HeapUse::kPool) {
    memory = std::malloc(bytes + kTensorAlignment);
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
