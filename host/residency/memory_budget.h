// MemoryBudget: how much memory this process may hold ([memory] limit), and what holds it. Off, and
// asked by nobody, until start(). [any-thread], except start(), expect() and set_resident(): those
// are the loop's.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace coupler {

enum class MemoryPart {
  kTensors,  // all that LibTorch allocates
  kBuffers,  // gathered units, gradients on their way, blocks between memory and a disk
};

class MemoryBudget {
 public:
  static MemoryBudget& of_process();

  // From now on what is taken counts. base: bytes that the process holds already, its code
  // included. Later calls change the limit only.
  void start(uint64_t limit, uint64_t base, int rank);
  bool on() const { return limit_.load(std::memory_order_relaxed) != 0; }
  uint64_t limit() const { return limit_; }
  uint64_t held() const { return held_; }  // base included
  uint64_t most_held() const { return most_; }

  // What of the tensors is known, and what would need less; both for the error's text.
  void expect(std::string known, std::string hint);

  // Throws Error(kOutOfMemory) where that would pass the limit; then nothing is taken.
  void take(MemoryPart part, size_t bytes);
  // What the C library gave beyond what was asked for.
  void note_more(MemoryPart part, size_t bytes) noexcept;
  void give_back(MemoryPart part, size_t bytes) noexcept;
  // So much is resident now: what is not counted is the process itself.
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
