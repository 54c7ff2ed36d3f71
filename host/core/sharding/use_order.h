// UseOrder: learns the order in which units are used and predicts the next one. A unit's successor
// depends on the unit before it, which distinguishes forward from backward. Not thread-safe: the
// owner locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace coupler {

class UseOrder {
 public:
  static constexpr size_t kNone = ~size_t{0};

  // Notes that `unit` is used now. False if it was also the last one used; then nothing changes.
  bool use(size_t unit);
  // Ends a pass (forward and backward): nothing follows the last unit.
  void end_of_pass();

  // The unit that followed the last time `before` and `unit` were used in that order; kNone if that
  // is not known or if a pass ended there.
  size_t next(size_t before, size_t unit) const;
  size_t before() const { return before_; }
  size_t current() const { return current_; }

  // A hash of everything learned: equal on ranks that use their units in the same order.
  uint64_t hash() const { return hash_; }

 private:
  void learn(size_t next);

  std::unordered_map<uint64_t, size_t> successor_;  // of two units packed
  size_t before_ = kNone, current_ = kNone;
  uint64_t hash_ = 0;
};

}  // namespace coupler
