// BucketReduction: how one bucket of gradients becomes their sum over the ranks: a number of
// collectives, the same on every rank, with work of this rank's before, between and behind them. It
// issues none itself: who owns it does, so that all of a communicator have one order. Used by the
// thread that runs backward.
#pragma once

#include <coupler/distributed_backend.h>

namespace coupler {

class BucketReduction {
 public:
  BucketReduction() = default;
  virtual ~BucketReduction() = default;
  BucketReduction(const BucketReduction&) = delete;
  BucketReduction& operator=(const BucketReduction&) = delete;

  // Of the next reduction; at least one.
  virtual int operations() const = 0;
  // The i-th of them, once those before are complete. Its memory stays until the next call.
  virtual db_op operation(int i) = 0;
  // Once all are complete: the bucket's memory holds the sum.
  virtual void finish() = 0;
};

}  // namespace coupler
