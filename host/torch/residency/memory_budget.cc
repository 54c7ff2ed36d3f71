#include "residency/memory_budget.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/byte_size.h"

namespace coupler {

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
    most_ = base;
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
  uint64_t most = most_.load(std::memory_order_relaxed);
  while (held > most && !most_.compare_exchange_weak(most, held, std::memory_order_relaxed)) {
  }
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

}  // namespace coupler
