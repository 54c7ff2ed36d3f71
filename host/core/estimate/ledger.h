// MemoryLedger: the memory of one simulated rank while its step is simulated: what is taken, for
// what, and the breakdown at the peak of resident memory. One thread.
//
// Resident memory is counted, not simulated. Large blocks are mapped. The others are in heaps, of
// which the C library has one per thread that allocates, and which only trim() shrinks: a heap
// stays as large as the most that was in it. Blocks of different sizes leave gaps: the more of them
// come and go in a forward and backward, the more of the heap is free.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace coupler::estimate {

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
  uint64_t heap = 0;                                  // free in the C library's heaps at the peak
  uint64_t largest_unit = 0;                          // unsharded, in the dtype it is gathered in
  std::string largest_unit_name;
  uint64_t peak = 0;  // resident, in total
  std::string when;   // prepare, forward, backward, step

  uint64_t of(MemoryCategory part) const { return most[static_cast<size_t>(part)]; }
};

// In training, the C library maps blocks from this size on, in bytes; glibc refuses a larger
// threshold.
inline constexpr uint64_t kMmapThreshold = uint64_t{32} << 20;

// Where a block is taken from.
enum class TakenFrom {
  kHeap,         // of the training thread
  kAnotherHeap,  // of the thread that fetches ahead
  kSystem,       // mapped, whatever its size
};

class MemoryLedger {
 public:
  struct Block {
    MemoryCategory part = MemoryCategory::kActivations;
    uint64_t bytes = 0;
    TakenFrom from = TakenFrom::kHeap;
    bool taken = false;
  };
  explicit MemoryLedger(uint64_t base) { result_.base = base; }
  Block take(MemoryCategory part, uint64_t bytes, TakenFrom from = TakenFrom::kHeap);
  void give_back(Block& block);  // no effect if it is not taken
  void move(Block& block, MemoryCategory part);
  void trim();

  void enter(const char* phase);
  MemoryEstimate& result() { return result_; }

 private:
  struct Heap {
    uint64_t taken = 0, passed = 0, size = 0;  // passed: through it since forward began
  };
  void count(MemoryCategory part, uint64_t bytes);
  void look();

  uint64_t mapped_ = 0;
  std::array<Heap, 2> heaps_;
  std::array<uint64_t, kMemoryCategories> now_{};
  const char* phase_ = "prepare";
  MemoryEstimate result_;
};

}  // namespace coupler::estimate
