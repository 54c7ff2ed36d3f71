// Which tokens of a sequence each rank of a context group has. Pure functions; [any-thread].
//
// Balanced: a sequence of 2N chunks, of which rank r has chunk r and chunk 2N - 1 - r. Under a
// causal mask, where later tokens see more, every rank then computes as much. In turns: rank r has
// the r-th of N chunks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace coupler::context_parallel {

enum class SequenceOrder { kBalanced, kInTurns };

// The positions of this rank's tokens in a sequence of `length`, [length / ranks] of int64. Throws
// Error(kInvalidArgument) naming `what` if the sequence does not divide.
at::Tensor positions_of(SequenceOrder order, int64_t length, int ranks, int rank,
                        const std::string& what);

// This rank's part of a tensor along a dimension: a copy.
at::Tensor part_of(const at::Tensor& whole, int64_t dim, SequenceOrder order, int ranks, int rank,
                   const std::string& what);

}  // namespace coupler::context_parallel
