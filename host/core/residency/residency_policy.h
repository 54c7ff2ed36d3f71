// ResidencyPolicy: which units of a model stay in memory and which are fetched ahead of their use:
// the rules of Residency (residency/residency.h) without its memory and threads, so that estimates
// can follow them. Not thread-safe: the owner locks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace coupler::residency {

// UseOrder: learns the order in which units are used and predicts the next one. A unit's successor
// depends on the unit before it, which distinguishes forward from backward.
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

struct ResidencyOptions {
  int prefetch = 0;       // units fetched ahead; 0: none, and no thread
  size_t live_bytes = 0;  // limit for units that are not sticky; units in use or fetched ahead may
                          // exceed it
  // Whether every rank fetches the same units (from its peers), so that none may be released before
  // it was used.
  bool shared = true;
  // Until the order of uses is known, assumes that units are used in the order in which they were
  // added. If they are not, some are fetched in vain.
  bool in_order = false;
};

// What the policy knows of a unit. The owner sets `resident` and clears `used`.
struct UnitState {
  size_t index = 0;
  size_t bytes = 0;
  bool sticky = false;  // kept until it is released by name or with all others
  // A pinned unit stays where it is; the pinning thread checks `resident` afterwards.
  std::atomic<int> pins{0};
  std::atomic<bool> resident{false};
  bool used = false;  // since it became resident
  uint64_t last_use = 0;
};

class ResidencyPolicy {
 public:
  // release: releases a unit, unless it has been pinned meanwhile; returns whether it did.
  ResidencyPolicy(const ResidencyOptions& options, std::function<bool(size_t unit)> release)
      : options_(options), release_(std::move(release)) {}

  // Sets the unit's index; it must outlive this.
  void add(UnitState& unit);
  // Notes a use, which the owner then fetches the unit for, and releases others to make room.
  void use(size_t unit);
  // The same for a use that is not learned, since fetching the unit ahead would gain nothing.
  void use_for_overwrite(size_t unit);
  // Units to fetch ahead, nearest first.
  const std::vector<size_t>& expected() const { return expected_; }
  // Ends a pass over the model: no unit is predicted to follow.
  void end_of_pass();
  void stop_prefetching();
  uint64_t order_hash() const { return order_.hash(); }

 private:
  void predict(size_t unit);
  void make_room(size_t unit);

  ResidencyOptions options_;
  const std::function<bool(size_t unit)> release_;
  std::vector<UnitState*> units_;
  UseOrder order_;
  uint64_t clock_ = 0;
  std::vector<size_t> expected_;
};

}  // namespace coupler::residency
