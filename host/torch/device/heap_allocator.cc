#include "device/heap_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace coupler::device {
namespace {

constexpr size_t kGap = c10::gAlignment;  // at most, between a block and its aligned memory
static_assert(alignof(std::max_align_t) >= sizeof(void*), "the gap has room for an address");

// Other allocators, preloaded, linked or a sanitizer's, have rules of their own: with sizes in
// classes, the gap would take a block into the next one.
bool has_malloc_of_glibc() {
  void* const library = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const bool same = ::dlsym(library, "malloc") == ::dlsym(RTLD_DEFAULT, "malloc");
  ::dlclose(library);
  return same;
}

// The same for the whole life of the process, since blocks are freed as they were taken.
bool aligns_itself() {
  static const bool kItself =
      has_malloc_of_glibc() &&
      c10::c10_compute_alignment(c10::gAlloc_threshold_thp) == c10::gAlignment;
  return kItself;
}

// The block is noted before the memory in it.
void*& block_before(void* memory) { return static_cast<void**>(memory)[-1]; }

void report_and_free(void* memory) {
  if (memory == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(memory);
  free_heap(memory);
}

// Reports to LibTorch's profiler what LibTorch's own allocator does.
class HeapAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    try {
      memory = take_heap(bytes);
    } catch (const c10::Error&) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      throw;
    }
    c10::profiledCPUMemoryReporter().New(memory, bytes);
    return {memory, memory, &report_and_free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &report_and_free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

void* take_heap(size_t bytes) {
  if (!aligns_itself()) return c10::alloc_cpu(bytes);
  if (bytes == 0) return nullptr;
  void* const block = bytes > SIZE_MAX - kGap ? nullptr : std::malloc(bytes + kGap);
  // Programs look for LibTorch's words.
  TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr,
                   "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", bytes,
                   " bytes");
  const size_t gap = kGap - reinterpret_cast<uintptr_t>(block) % c10::gAlignment;
  void* const memory = static_cast<char*>(block) + gap;
  block_before(memory) = block;
  return memory;
}

void free_heap(void* memory) {
  if (!aligns_itself()) return c10::free_cpu(memory);
  if (memory != nullptr) std::free(block_before(memory));
}

size_t heap_size(void* memory) {
  return ::malloc_usable_size(aligns_itself() ? block_before(memory) : memory);
}

void use_heap_allocator() {
  if (!aligns_itself() || c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) return;
  static auto* const kAllocator = new HeapAllocator;  // tensors may outlive everything
  c10::SetCPUAllocator(kAllocator);
}

}  // namespace coupler::device
