// BucketReduction: sums one bucket of gradients over the ranks with a number of collectives, the
// same on every rank, and local work before, between and after them. Its owner issues the
// collectives, so that all of a communicator's are in one order. Used by the thread that runs
// backward.
#pragma once

#include <coupler/distributed_backend.h>

namespace coupler {

class BucketReduction {
 public:
  BucketReduction() = default;
  virtual ~BucketReduction() = default;
  BucketReduction(const BucketReduction&) = delete;
  BucketReduction& operator=(const BucketReduction&) = delete;

  // How many collectives the next reduction takes; at least one.
  virtual int operations() const = 0;
  // The i-th of them, once those before are complete. Its memory is valid until the next call.
  virtual db_op operation(int i) = 0;
  // Call once all are complete; afterwards the bucket's memory holds the sum.
  virtual void finish() = 0;
};

}  // namespace coupler
