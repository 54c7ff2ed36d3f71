// Sequences divided over the ranks of a context group: what Accelerator::context_parallel takes,
// and what modules that count positions ask. See docs/parallelism.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace coupler {

// A tensor with a sequence.
struct SequenceTensor {
  at::Tensor tensor;  // without gradient
  int64_t dim = 1;    // of its sequence
};

// Within Accelerator::context_parallel: the positions of this rank's `tokens` tokens in the whole
// sequence, [tokens] of int64; elsewhere 0, 1, …. Of the calling thread's scope; [any-thread].
at::Tensor context_positions(int64_t tokens, c10::Device device = c10::kCPU);

}  // namespace coupler
