#include "sharding/use_order.h"

namespace coupler {
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

}  // namespace coupler
