// ResidencyModel: the rules by which residency/residency.h keeps units in memory, without the
// memory and the threads: a prefetch completes at once, and a background write waits as long as it
// may. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "estimate/ledger.h"
#include "sharding/use_order.h"

namespace coupler {

// PoolModel: the rules by which residency/buffer_pool.h keeps memory, without the memory. One
// thread.
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

class ResidencyModel {
 public:
  struct Options {
    int prefetch = 0;
    uint64_t live_bytes = 0;
    bool shared = true;
    size_t behind = 0;  // units that may wait to be written; 0: none are written
    Part part = Part::kUnits;
  };
  // fill: takes what filling a unit takes temporarily, on the training thread or, if ahead of the
  // use, on the residency's own thread.
  ResidencyModel(PoolModel& pool, const Options& options, std::function<void(size_t, bool)> fill);

  size_t add(uint64_t bytes, bool sticky);
  void use(size_t unit);
  void use_blank(size_t unit);  // all of it will be written
  void pin(size_t unit) { ++units_[unit].pins; }
  void unpin(size_t unit) { --units_[unit].pins; }
  void write(size_t unit) { units_[unit].written = true; }
  void release(size_t unit);
  void release_all();
  void end_of_pass();

 private:
  struct Unit {
    uint64_t bytes = 0, last_use = 0;
    bool sticky = false, written = false;
    bool used = false;  // since it was fetched
    int pins = 0;
    MemoryLedger::Block memory;
  };
  void make_room(size_t unit);
  void fetch(size_t unit, bool ahead);
  bool is_expected(size_t unit) const;

  PoolModel& pool_;
  const Options options_;
  const std::function<void(size_t, bool)> fill_;
  std::vector<Unit> units_;
  std::deque<MemoryLedger::Block> waiting_;
  std::vector<size_t> expected_;
  UseOrder order_;
  uint64_t clock_ = 0;
};

}  // namespace coupler
