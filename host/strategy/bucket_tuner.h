// BucketTuner: chooses how gradients are cut into buckets by trying a few ways in the first steps
// and keeping the fastest. All ranks decide the same, since what they compare is the slowest rank's
// time. Used by the thread that runs backward.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace coupler {

// How one step's gradients are reduced.
struct BucketPlan {
  int64_t cap_bytes = 0;  // 0: one bucket
  bool overlap = false;   // submitted while backward goes on; else run where the bucket is full
  bool operator==(const BucketPlan&) const = default;
};

class BucketTuner {
 public:
  // total_bytes: of all gradients. cap_mb > 0 fixes the plan (overlapped buckets of that size).
  BucketTuner(int64_t total_bytes, double cap_mb);

  const BucketPlan& plan() const { return candidates_[current_]; }

  // Reports the seconds one synchronised backward took under plan(); true when plan() is another
  // one from now on. Every few calls collective, at the same calls on every rank.
  bool report(double seconds, Communicator& comm);

 private:
  void settle(Communicator& comm);

  std::vector<BucketPlan> candidates_;
  std::vector<std::vector<double>> times_;  // by candidate
  size_t current_ = 0;
  bool settled_ = false;
};

}  // namespace coupler
