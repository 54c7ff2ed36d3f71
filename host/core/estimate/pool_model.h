// PoolModel: the rules by which residency/buffer_pool.h keeps memory, without the memory. One
// thread.
#pragma once

#include <cstdint>
#include <vector>

#include "estimate/ledger.h"

namespace coupler {

class PoolModel {
 public:
  PoolModel(MemoryLedger& ledger, bool pages) : ledger_(ledger), pages_(pages) {}

  MemoryLedger::Block take(Part part, uint64_t bytes, bool aside = false);
  void give_back(MemoryLedger::Block& block);  // no effect if it is not taken

 private:
  MemoryLedger& ledger_;
  const bool pages_;
  std::vector<MemoryLedger::Block> free_;
  uint64_t free_bytes_ = 0, out_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace coupler
