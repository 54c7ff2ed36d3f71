#include "estimate/residency_model.h"

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

ResidencyModel::ResidencyModel(PoolModel& pool, const Options& options,
                               std::function<void(size_t, bool)> fill)
    : pool_(pool), options_(options), fill_(std::move(fill)) {}

size_t ResidencyModel::add(uint64_t bytes, bool sticky) {
  units_.push_back({.bytes = bytes, .sticky = sticky});
  return units_.size() - 1;
}

void ResidencyModel::use(size_t unit) {
  units_[unit].last_use = ++clock_;
  if (order_.use(unit)) {
    expected_.clear();
    size_t before = order_.before(), current = unit;
    for (int i = 0; i < options_.prefetch; ++i) {
      const size_t next = order_.next(before, current);
      if (next == UseOrder::kNone) break;
      expected_.push_back(next);
      before = std::exchange(current, next);
    }
    make_room(unit);
  }
  fetch(unit, /*ahead=*/false);
  units_[unit].used = true;
  ++units_[unit].pins;
  for (const size_t next : expected_) fetch(next, /*ahead=*/true);
  --units_[unit].pins;
}

void ResidencyModel::use_blank(size_t unit) {
  make_room(unit);
  units_[unit].last_use = ++clock_;
  if (!units_[unit].memory.taken) {
    units_[unit].memory = pool_.take(options_.part, units_[unit].bytes);
  }
  units_[unit].used = true;
}

void ResidencyModel::fetch(size_t unit, bool ahead) {
  if (units_[unit].memory.taken) return;
  units_[unit].memory = pool_.take(options_.part, units_[unit].bytes, ahead);
  if (fill_) fill_(unit, ahead);
}

bool ResidencyModel::is_expected(size_t unit) const {
  return std::find(expected_.begin(), expected_.end(), unit) != expected_.end();
}

void ResidencyModel::make_room(size_t unit) {
  uint64_t live = 0;
  std::vector<size_t> candidates;
  for (const size_t next : expected_) {
    live += units_[next].sticky || next == unit ? 0 : units_[next].bytes;
  }
  for (size_t other = 0; other < units_.size(); ++other) {
    const Unit& known = units_[other];
    if (other == unit || known.sticky || !known.memory.taken || is_expected(other)) continue;
    if (options_.shared && !known.used) continue;
    live += known.bytes;
    if (known.pins == 0) candidates.push_back(other);
  }
  const uint64_t own = units_[unit].bytes;
  const uint64_t limit = options_.live_bytes > own ? options_.live_bytes - own : 0;
  std::sort(candidates.begin(), candidates.end(),
            [&](size_t a, size_t b) { return units_[a].last_use < units_[b].last_use; });
  for (const size_t candidate : candidates) {
    if (live <= limit) return;
    release(candidate);
    live -= units_[candidate].bytes;
  }
}

void ResidencyModel::release(size_t unit) {
  Unit& known = units_[unit];
  if (!known.memory.taken) return;
  known.used = false;
  if (!std::exchange(known.written, false) || options_.behind == 0) {
    pool_.give_back(known.memory);
    return;
  }
  while (waiting_.size() >= options_.behind) {
    pool_.give_back(waiting_.front());
    waiting_.pop_front();
  }
  waiting_.push_back(std::exchange(known.memory, {}));
}

void ResidencyModel::release_all() {
  for (size_t unit = 0; unit < units_.size(); ++unit) release(unit);
}

void ResidencyModel::end_of_pass() {
  order_.end_of_pass();
  expected_.clear();
}

}  // namespace coupler
