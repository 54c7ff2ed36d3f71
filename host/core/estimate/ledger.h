// MemoryLedger: the memory of one simulated rank while its step is simulated: what is taken, for
// what, and the breakdown at the peak of resident memory. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "estimate/heap.h"

namespace coupler {

enum class MemoryCategory {
  kParameters,   // as kept from step to step
  kMaster,       // likewise, if operations compute with copies in another dtype
  kGradients,    // kept from backward until step
  kOptimizer,    // state
  kUnits,        // gathered parameters
  kActivations,  // made by forward and backward, including autocast's copies of weights
  kBuffers,      // gradients in flight, packed transfers, blocks in flight to and from a disk
  kCount,
};
constexpr size_t kMemoryCategories = static_cast<size_t>(MemoryCategory::kCount);

struct MemoryEstimate {
  std::array<uint64_t, kMemoryCategories> at_peak{};  // by part
  std::array<uint64_t, kMemoryCategories> most{};     // of each part separately
  uint64_t base = 0;                                  // of the process
  uint64_t heap = 0;                                  // free in the C library's heap at the peak
  uint64_t largest_unit = 0;                          // unsharded, in the dtype it is gathered in
  std::string largest_unit_name;
  uint64_t peak = 0;  // resident, in total
  std::string when;   // prepare, forward, backward, step

  uint64_t of(MemoryCategory part) const { return most[static_cast<size_t>(part)]; }
};

class MemoryLedger {
 public:
  struct Block {
    MemoryCategory part = MemoryCategory::kActivations;
    uint64_t bytes = 0, address = 0;
    bool pages = false, taken = false;
  };

  MemoryLedger(Heap& heap, uint64_t base) : heap_(heap) { result_.base = base; }
  // pages: taken directly from the system instead of the heap.
  Block take(MemoryCategory part, uint64_t bytes, bool pages = false,
             HeapUse use = HeapUse::kTensor);
  void give_back(Block& block);  // no effect if it is not taken
  void move(Block& block, MemoryCategory part);
  void set_objects(uint64_t bytes) { heap_.set_objects(bytes); }
  void trim() { heap_.trim(); }

  void enter(const char* phase) { phase_ = phase; }
  MemoryEstimate& result() { return result_; }

 private:
  void look();

  Heap& heap_;
  uint64_t pages_ = 0;
  std::array<uint64_t, kMemoryCategories> now_{};
  const char* phase_ = "prepare";
  MemoryEstimate result_;
};

}  // namespace coupler
