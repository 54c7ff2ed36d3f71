#include "estimate/pool_model.h"

#include <algorithm>
#include <utility>

namespace coupler {

MemoryLedger::Block PoolModel::take(Part part, uint64_t bytes, bool aside) {
  const uint64_t size = (std::max<uint64_t>(bytes, 1) + 63) / 64 * 64;
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->bytes < size || it->bytes - size > size / 4) continue;
    if (best == free_.end() || it->bytes < best->bytes) best = it;
  }
  MemoryLedger::Block result;
  if (best != free_.end()) {
    result = *best;
    free_bytes_ -= result.bytes;
    free_.erase(best);
    ledger_.move(result, part);
  } else {
    while (!free_.empty() && out_bytes_ + free_bytes_ + size > peak_bytes_) {
      free_bytes_ -= free_.front().bytes;
      ledger_.give_back(free_.front());
      free_.erase(free_.begin());
    }
    result = ledger_.take(part, size, pages_, aside ? HeapUse::kPoolAside : HeapUse::kPool);
  }
  out_bytes_ += result.bytes;
  peak_bytes_ = std::max(peak_bytes_, out_bytes_);
  return result;
}

void PoolModel::give_back(MemoryLedger::Block& block) {
  if (!block.taken) return;
  out_bytes_ -= block.bytes;
  free_bytes_ += block.bytes;
  ledger_.move(block, Part::kBuffers);  // kept for reuse
  free_.push_back(block);
  block.taken = false;
}

}  // namespace coupler
