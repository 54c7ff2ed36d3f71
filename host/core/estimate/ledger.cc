#include "estimate/ledger.h"

#include <algorithm>
#include <numeric>
#include <string_view>

namespace coupler::estimate {
namespace {

constexpr uint64_t kPage = 4096;
// One byte of a heap is free for this many bytes of tensors that passed through it. Replays of
// forward and backward of GPTs on the C library's own heap needed one for 50 or more; small objects
// that live long and other threads add to that.
constexpr uint64_t kPassedPerFree = 32;

bool is_mapped(const MemoryLedger::Block& block) {
  return block.from == TakenFrom::kSystem || block.bytes >= kMmapThreshold;
}
uint64_t in_pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

MemoryLedger::Block MemoryLedger::take(MemoryCategory part, uint64_t bytes, TakenFrom from) {
  const Block block{.part = part, .bytes = bytes, .from = from, .taken = true};
  if (is_mapped(block)) {
    mapped_ += in_pages(bytes);
  } else {
    Heap& heap = heaps_[static_cast<size_t>(from)];
    heap.taken += bytes;
    if (part == MemoryCategory::kActivations) heap.passed += bytes;
    heap.size = std::max(heap.size, heap.taken + heap.passed / kPassedPerFree);
  }
  count(part, bytes);
  look();
  return block;
}

void MemoryLedger::give_back(Block& block) {
  if (!block.taken) return;
  block.taken = false;
  if (is_mapped(block)) {
    mapped_ -= in_pages(block.bytes);
  } else {
    heaps_[static_cast<size_t>(block.from)].taken -= block.bytes;
  }
  now_[static_cast<size_t>(block.part)] -= block.bytes;
}

void MemoryLedger::enter(const char* phase) {
  phase_ = phase;
  if (std::string_view(phase) != "forward") return;
  for (Heap& heap : heaps_) heap.passed = 0;
}

void MemoryLedger::move(Block& block, MemoryCategory part) {
  now_[static_cast<size_t>(block.part)] -= block.bytes;
  block.part = part;
  count(part, block.bytes);
}

void MemoryLedger::trim() {
  for (Heap& heap : heaps_) heap.size = heap.taken;
}

void MemoryLedger::count(MemoryCategory part, uint64_t bytes) {
  uint64_t& now = now_[static_cast<size_t>(part)];
  now += bytes;
  uint64_t& most = result_.most[static_cast<size_t>(part)];
  most = std::max(most, now);
}

void MemoryLedger::look() {
  uint64_t resident = result_.base + mapped_;
  for (const Heap& heap : heaps_) resident += heap.size;
  if (resident <= result_.peak) return;
  result_.peak = resident;
  result_.heap = resident - std::accumulate(now_.begin(), now_.end(), result_.base);
  result_.at_peak = now_;
  result_.when = phase_;
}

}  // namespace coupler::estimate
