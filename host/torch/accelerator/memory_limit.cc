#include "accelerator/memory_limit.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <algorithm>

#include "base/resident.h"
#include "residency/memory_budget.h"

namespace coupler {
namespace {

void release(void* memory) {
  MemoryBudget::of_process().give_back(MemoryPart::kTensors, ::malloc_usable_size(memory));
  c10::free_cpu(memory);
}

// LibTorch's host allocator with counting. Counts the size that the C library allocated, since only
// that is known when memory is freed.
class CountingAllocator final : public at::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, at::kCPU};
    MemoryBudget& budget = MemoryBudget::of_process();
    budget.take(MemoryPart::kTensors, bytes);  // before allocating, so that the limit holds
    void* memory = nullptr;
    try {
      memory = c10::alloc_cpu(bytes);
    } catch (...) {
      budget.give_back(MemoryPart::kTensors, bytes);
      throw;
    }
    budget.note_more(MemoryPart::kTensors, ::malloc_usable_size(memory) - bytes);
    return {memory, memory, &release, at::kCPU};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

void hold_memory_limit(uint64_t limit, int rank) {
  static auto* const kAllocator = new CountingAllocator;  // tensors may outlive everything
  MemoryBudget::of_process().start(limit, resident_bytes(), rank);
  constexpr uint8_t kPriority = 100;
  c10::SetCPUAllocator(kAllocator, kPriority);
}

void measure_uncounted_memory() {
  MemoryBudget& budget = MemoryBudget::of_process();
  if (!budget.on()) return;
  ::malloc_trim(0);  // returns free heap memory to the system
  budget.set_resident(resident_bytes());
}

}  // namespace coupler
