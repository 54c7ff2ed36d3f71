// MemoryBudget: how much memory this process may hold ([memory] limit), and what holds it. Off and
// unused until start(). [any-thread], except that only the training loop calls start(), expect()
// and set_resident().
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace coupler {

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
  uint64_t limit() const { return limit_; }
  uint64_t held() const { return held_; }  // base included
  uint64_t most_held() const { return most_; }

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

  std::atomic<uint64_t> limit_{0}, held_{0}, most_{0};
  std::array<std::atomic<int64_t>, 2> parts_{};
  std::atomic<uint64_t> base_{0};
  int rank_ = 0;
  std::string known_, hint_;
};

}  // namespace coupler
