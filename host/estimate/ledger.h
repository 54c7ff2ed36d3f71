// MemoryLedger: the memory of one imagined rank while its step is replayed: what is taken, for
// what, and how it stood when most was resident. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "estimate/heap.h"

namespace coupler {

enum class Part {
  kParameters,   // as they are kept from step to step
  kMaster,       // likewise, where operations compute with copies in another type
  kGradients,    // kept from backward to step
  kOptimizer,    // its state
  kUnits,        // gathered parameters
  kActivations,  // what forward and backward make, autocast's copies of weights included
  kBuffers,      // gradients on their way, packed transfers, blocks on their way to and from a disk
  kCount,
};
constexpr size_t kParts = static_cast<size_t>(Part::kCount);

struct MemoryEstimate {
  std::array<uint64_t, kParts> at_peak{};  // by part
  std::array<uint64_t, kParts> most{};     // of each part by itself
  uint64_t base = 0;                       // of the process
  uint64_t heap = 0;                       // free in the C library's heap at the peak
  uint64_t largest_unit = 0;               // whole, in the type it is gathered in
  std::string largest_unit_name;
  uint64_t peak = 0;  // resident, all in all
  std::string when;   // prepare, forward, backward, step

  uint64_t of(Part part) const { return most[static_cast<size_t>(part)]; }
};

class MemoryLedger {
 public:
  struct Block {
    Part part = Part::kActivations;
    uint64_t bytes = 0, address = 0;
    bool pages = false, taken = false;
  };

  MemoryLedger(Heap& heap, uint64_t base) : heap_(heap) { result_.base = base; }
  // pages: from the system itself, and not from the heap.
  Block take(Part part, uint64_t bytes, bool pages = false, HeapUse use = HeapUse::kTensor);
  void give_back(Block& block);  // does nothing where it is not taken
  void move(Block& block, Part part);
  void set_objects(uint64_t bytes) { heap_.set_objects(bytes); }
  void trim() { heap_.trim(); }

  void enter(const char* phase) { phase_ = phase; }
  MemoryEstimate& result() { return result_; }

 private:
  void look();

  Heap& heap_;
  uint64_t pages_ = 0;
  std::array<uint64_t, kParts> now_{};
  const char* phase_ = "prepare";
  MemoryEstimate result_;
};

}  // namespace coupler
