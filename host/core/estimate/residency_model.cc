#include "estimate/residency_model.h"

#include <utility>

namespace coupler::estimate {

MemoryLedger::Block PoolModel::take(MemoryCategory part, uint64_t bytes, bool ahead) {
  const TakenFrom from = pages_  ? TakenFrom::kSystem
                         : ahead ? TakenFrom::kAnotherHeap
                                 : TakenFrom::kHeap;
  MemoryLedger::Block block = free_.take(
      bytes, [&] { return ledger_.take(part, bytes, from); },
      [&](MemoryLedger::Block kept) { ledger_.give_back(kept); });
  ledger_.move(block, part);
  return block;
}

void PoolModel::give_back(MemoryLedger::Block& block) {
  if (!block.taken) return;
  ledger_.move(block, MemoryCategory::kBuffers);  // kept for reuse
  free_.give_back(block);
  block.taken = false;
}

ResidencyModel::ResidencyModel(PoolModel& pool, const Options& options,
                               std::function<void(size_t, bool)> fill)
    : pool_(pool),
      options_(options),
      fill_(std::move(fill)),
      policy_(options.policy, [this](size_t unit) { return try_release(unit); }) {}

size_t ResidencyModel::add(uint64_t bytes, bool sticky) {
  Unit& unit = units_.emplace_back();
  unit.bytes = bytes;
  unit.sticky = sticky;
  policy_.add(unit);
  return unit.index;
}

void ResidencyModel::use(size_t unit) {
  policy_.use(unit);
  fetch(unit, /*ahead=*/false);
  units_[unit].used = true;
  for (const size_t next : policy_.expected()) fetch(next, /*ahead=*/true);
}

void ResidencyModel::use_for_overwrite(size_t unit) {
  policy_.use_for_overwrite(unit);
  if (units_[unit].resident.exchange(true)) return;
  units_[unit].memory = pool_.take(options_.part, units_[unit].bytes);
}

void ResidencyModel::fetch(size_t unit, bool ahead) {
  if (units_[unit].resident.exchange(true)) return;
  units_[unit].memory = pool_.take(options_.part, units_[unit].bytes, ahead);
  units_[unit].used = false;
  if (fill_) fill_(unit, ahead);
}

bool ResidencyModel::try_release(size_t unit) {
  Unit& known = units_[unit];
  if (!known.resident) return true;
  if (known.pins != 0) return false;
  known.resident = known.used = false;
  if (!std::exchange(known.written, false) || options_.max_queued_writes == 0) {
    pool_.give_back(known.memory);
    return true;
  }
  while (waiting_.size() >= options_.max_queued_writes) {
    pool_.give_back(waiting_.front());
    waiting_.pop_front();
  }
  waiting_.push_back(std::exchange(known.memory, {}));
  return true;
}

void ResidencyModel::release(size_t unit) {
  if (units_[unit].used) try_release(unit);
}

void ResidencyModel::release_all() {
  for (size_t unit = 0; unit < units_.size(); ++unit) try_release(unit);
}

}  // namespace coupler::estimate
