// ResidencyModel and PoolModel: what residency/residency.h and residency/buffer_pool.h hold under
// their policies, without the memory and the threads: a prefetch completes at once, and a
// background write waits as long as it may. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "estimate/ledger.h"
#include "residency/free_list.h"
#include "residency/residency_policy.h"

namespace coupler::estimate {

class PoolModel {
 public:
  PoolModel(MemoryLedger& ledger, bool pages) : ledger_(ledger), pages_(pages) {}

  // ahead: taken by the thread that fetches ahead.
  MemoryLedger::Block take(MemoryCategory part, uint64_t bytes, bool ahead = false);
  void give_back(MemoryLedger::Block& block);  // no effect if it is not taken

 private:
  MemoryLedger& ledger_;
  const bool pages_;
  residency::FreeList<MemoryLedger::Block> free_;
};

class ResidencyModel {
 public:
  struct Options {
    residency::ResidencyOptions policy;
    size_t max_queued_writes = 0;  // units that may wait to be written; 0: none are written
    MemoryCategory part = MemoryCategory::kUnits;
  };
  // fill: takes what filling a unit takes temporarily, on the training thread or, if ahead of the
  // use, on the residency's own thread.
  ResidencyModel(PoolModel& pool, const Options& options, std::function<void(size_t, bool)> fill);

  size_t add(uint64_t bytes, bool sticky);
  void use(size_t unit);
  void use_for_overwrite(size_t unit);  // all of it will be written
  void pin(size_t unit) { ++units_[unit].pins; }
  void unpin(size_t unit) { --units_[unit].pins; }
  void write(size_t unit) { units_[unit].written = true; }
  void release(size_t unit);
  void release_all();
  void end_of_pass() { policy_.end_of_pass(); }

 private:
  struct Unit : residency::UnitState {
    bool written = false;
    MemoryLedger::Block memory;
  };
  bool try_release(size_t unit);
  void fetch(size_t unit, bool ahead);

  PoolModel& pool_;
  const Options options_;
  const std::function<void(size_t, bool)> fill_;
  std::deque<Unit> units_;
  std::deque<MemoryLedger::Block> waiting_;
  residency::ResidencyPolicy policy_;
};

}  // namespace coupler::estimate
