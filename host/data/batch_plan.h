// BatchPlan: which positions of an epoch's order make up each batch of one rank, as Accelerate's
// BatchSamplerShard defines it. Pure arithmetic on an immutable object, any thread; O(1) to make,
// so any batch can be reached without the ones before it.
//
// A step takes the next `global` positions, batch_size × world of them (batch_size itself where
// split_batches), and rank r gets the r-th of world equal slices. With split_batches step k
// therefore sees the same samples for every world. Where the last step is incomplete, drop_last
// leaves it out, even_batches fills it from the start of the order so that every rank gets equally
// many full batches, and without either a rank gets what lies in its slice, which may be nothing.
// Steps begin at position `start`, where an epoch is resumed; filling begins at 0 all the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace coupler {

struct BatchPlanSpec {
  size_t samples = 0;
  int64_t batch_size = 1;
  int rank = 0;
  int world = 1;
  bool split_batches = false;
  bool drop_last = false;
  bool even_batches = true;
  size_t start = 0;
};

class BatchPlan {
 public:
  // Throws Error(kInvalidArgument) for a batch size below 1, one that split_batches cannot divide
  // by the world, a rank outside it, and a start behind the last sample.
  explicit BatchPlan(const BatchPlanSpec& spec);

  // The batches of this rank.
  size_t size() const { return size_; }

  // Positions a step takes over all ranks; of one rank; where this rank's begin.
  size_t step_samples() const { return global_; }
  size_t slice() const { return slice_; }
  size_t first() const { return first_; }

  // The positions of batch `step` < size(), all below samples; `positions` is reused memory.
  void batch(size_t step, std::vector<size_t>& positions) const;

  // How many positions of it, the first ones, no other batch has: the rest fills it.
  size_t own(size_t step) const;

 private:
  size_t samples_;
  size_t start_;
  size_t global_;
  size_t slice_;
  size_t first_;
  size_t size_;
  bool wrap_;  // the last step is filled from the start
};

}  // namespace coupler
