// BucketTuner: chooses how gradients are cut into buckets: tries a few plans in the first steps and
// keeps the fastest. All ranks choose the same one, since they compare the slowest rank's times.
// Used by the thread that runs backward.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace coupler {

// How one step's gradients are reduced.
struct BucketPlan {
  int64_t cap_bytes = 0;  // 0: one bucket
  bool overlap = false;   // buckets are reduced while backward continues; else backward waits
  bool operator==(const BucketPlan&) const = default;
};

class BucketTuner {
 public:
  // total_bytes: of all gradients. cap_mb > 0 fixes the plan (overlapped buckets of that size).
  BucketTuner(int64_t total_bytes, double cap_mb);

  const BucketPlan& plan() const { return candidates_[current_]; }

  // Reports the seconds that one synchronized backward took under plan(); true if plan() has
  // changed. Every few calls collective, at the same calls on every rank.
  bool report(double seconds, Communicator& comm);

 private:
  void settle(Communicator& comm);

  std::vector<BucketPlan> candidates_;
  std::vector<std::vector<double>> times_;  // by candidate
  size_t current_ = 0;
  bool settled_ = false;
};

}  // namespace coupler
