#include "residency/residency_policy.h"

#include <algorithm>

namespace coupler::residency {
namespace {

// Units are counted in thousands: half a word each is plenty.
uint64_t pack(size_t before, size_t unit) {
  return static_cast<uint64_t>(before) << 32 | (static_cast<uint64_t>(unit) & 0xffffffff);
}

uint64_t hash_of(uint64_t key, size_t next) {
  uint64_t hash = (key ^ static_cast<uint64_t>(next) * 0xbf58476d1ce4e5b9u) * 0x9e3779b97f4a7c15u;
  hash ^= hash >> 29;
  return hash * 0x94d049bb133111ebu;
}

}  // namespace

// The sum over all entries does not depend on the order in which they were learned.
void UseOrder::learn(size_t next) {
  if (current_ == kNone) return;
  const uint64_t key = pack(before_, current_);
  const auto [entry, is_new] = successor_.try_emplace(key, next);
  if (!is_new) {
    if (entry->second == next) return;
    hash_ -= hash_of(key, entry->second);
    entry->second = next;
  }
  hash_ += hash_of(key, next);
}

bool UseOrder::use(size_t unit) {
  if (unit == current_) return false;
  learn(unit);
  before_ = current_;
  current_ = unit;
  return true;
}

void UseOrder::end_of_pass() {
  learn(kNone);
  before_ = current_ = kNone;
}

size_t UseOrder::next(size_t before, size_t unit) const {
  const auto found = successor_.find(pack(before, unit));
  return found == successor_.end() ? kNone : found->second;
}

void ResidencyPolicy::add(UnitState& unit) {
  unit.index = units_.size();
  units_.push_back(&unit);
}

void ResidencyPolicy::use(size_t unit) {
  units_[unit]->last_use = ++clock_;
  units_[unit]->used = true;
  if (!order_.use(unit)) return;
  predict(unit);
  make_room(unit);
}

void ResidencyPolicy::use_for_overwrite(size_t unit) {
  make_room(unit);
  units_[unit]->last_use = ++clock_;
  units_[unit]->used = true;
}

void ResidencyPolicy::predict(size_t unit) {
  expected_.clear();
  size_t before = order_.before(), current = unit;
  for (int i = 0; i < options_.prefetch; ++i) {
    size_t next = order_.next(before, current);
    if (next == UseOrder::kNone && options_.in_order) next = current + 1;
    if (next >= units_.size()) break;
    expected_.push_back(next);
    before = std::exchange(current, next);
  }
}

// Releases the least recently used first. Units fetched but not used yet stay: no other rank may
// request them again.
void ResidencyPolicy::make_room(size_t unit) {
  size_t live = 0;
  std::vector<UnitState*> candidates;
  for (const size_t next : expected_) {
    live += units_[next]->sticky || next == unit ? 0 : units_[next]->bytes;
  }
  for (UnitState* const other : units_) {
    if (other->index == unit || other->sticky || !other->resident.load()) continue;
    // The time at which a unit arrives ahead of its use differs between ranks.
    if (options_.shared && !other->used) continue;
    if (std::find(expected_.begin(), expected_.end(), other->index) != expected_.end()) continue;
    live += other->bytes;
    if (other->pins.load() == 0) candidates.push_back(other);
  }
  const size_t own = units_[unit]->bytes;
  const size_t limit = options_.live_bytes > own ? options_.live_bytes - own : 0;
  if (live <= limit) return;
  std::sort(candidates.begin(), candidates.end(),
            [](const UnitState* a, const UnitState* b) { return a->last_use < b->last_use; });
  for (const UnitState* const candidate : candidates) {
    if (live <= limit) return;
    if (release_(candidate->index)) live -= candidate->bytes;
  }
}

void ResidencyPolicy::end_of_pass() {
  order_.end_of_pass();
  expected_.clear();
}

void ResidencyPolicy::stop_prefetching() {
  options_.prefetch = 0;
  expected_.clear();
}

}  // namespace coupler::residency
