#include "estimate/ledger.h"

#include <algorithm>

namespace coupler {

MemoryLedger::Block MemoryLedger::take(MemoryCategory part, uint64_t bytes, bool pages,
                                       HeapUse use) {
  Block block{.part = part, .bytes = bytes, .address = 0, .pages = pages, .taken = true};
  if (bytes == 0) return block;
  if (pages) {
    pages_ += (bytes + 4095) / 4096 * 4096;
  } else {
    block.address = heap_.take(bytes, use);
  }
  uint64_t& now = now_[static_cast<size_t>(part)];
  now += bytes;
  uint64_t& most = result_.most[static_cast<size_t>(part)];
  most = std::max(most, now);
  look();
  return block;
}

void MemoryLedger::give_back(Block& block) {
  if (!block.taken) return;
  block.taken = false;
  if (block.bytes == 0) return;
  if (block.pages) {
    pages_ -= (block.bytes + 4095) / 4096 * 4096;
  } else {
    heap_.give_back(block.address);
  }
  now_[static_cast<size_t>(block.part)] -= block.bytes;
}

void MemoryLedger::move(Block& block, MemoryCategory part) {
  now_[static_cast<size_t>(block.part)] -= block.bytes;
  block.part = part;
  uint64_t& now = now_[static_cast<size_t>(part)];
  now += block.bytes;
  uint64_t& most = result_.most[static_cast<size_t>(part)];
  most = std::max(most, now);
}

void MemoryLedger::look() {
  const uint64_t resident = result_.base + heap_.resident() + pages_;
  if (resident <= result_.peak) return;
  result_.peak = resident;
  // Blocks in memory the process already had add nothing.
  result_.heap = heap_.resident() - std::min(heap_.resident(), heap_.live());
  result_.at_peak = now_;
  result_.when = phase_;
}

}  // namespace coupler
