// BatchSampler: which positions of an epoch's order make up each batch of one rank, as Accelerate's
// BatchSamplerShard defines it. Immutable, so any thread may call it. It is O(1) to make, so any
// batch can be reached without the ones before it.
//
// A step takes the next `global` positions: batch_size × world_size, or batch_size with
// split_batches. Rank r gets the r-th of world_size equal slices, so with split_batches step k sees
// the same samples at every world size. If the last step is incomplete, drop_last leaves it out,
// and even_batches fills it from the start of the order so that all ranks get the same number of
// full batches. Without either, a rank gets what lies in its slice, which may be nothing. Steps
// begin at position `start` when an epoch is resumed; filling still begins at 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace coupler::data {

struct BatchSamplerOptions {
  size_t samples = 0;
  int64_t batch_size = 1;
  int rank = 0;
  int world_size = 1;
  bool split_batches = false;
  bool drop_last = false;
  bool even_batches = true;
  size_t start = 0;
};

class BatchSampler {
 public:
  // Throws Error(kInvalidArgument) for a batch size below 1 or, with split_batches, not a multiple
  // of the world size, for a rank outside the world, and for a start past the last sample.
  explicit BatchSampler(const BatchSamplerOptions& spec);

  // The number of this rank's batches.
  size_t size() const { return size_; }

  // Positions per step over all ranks; per rank; the offset of this rank's slice in a step.
  size_t step_samples() const { return global_; }
  size_t slice() const { return slice_; }
  size_t first() const { return first_; }

  // The positions of batch `step` < size(), all below samples; `positions` is reused memory.
  void batch(size_t step, std::vector<size_t>& positions) const;

  // How many of its first positions belong to no other batch; the rest are filling.
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

// The order of samples in an epoch: a function of (count, seed, epoch) alone, the same for every
// world size, platform and version of Coupler. Pure; any thread may call it.
//
// The specification, with mix the finalizer of splitmix64 and G = 0x9e3779b97f4a7c15, all modulo
// 2^64:
//   state  = mix(mix(seed) + epoch + 1)
//   draw() = state += G, mix(state)
//   below(b): the high word of draw() × b, drawn again while the low word is less than 2^64 mod b
//   order  = 0, 1, …, count-1; for i from count-1 down to 1, swap order[i] and order[below(i+1)]

// Fills `order`, reusing its memory.
void shuffled_order(size_t count, uint64_t seed, uint64_t epoch, std::vector<size_t>& order);

}  // namespace coupler::data
