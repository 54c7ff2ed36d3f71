// Attention of some queries to some keys, as one block of a larger attention: with what is needed
// to put blocks together, and backward of a block given the whole's result. Flash attention on CPUs
// (LibTorch's), products and a softmax elsewhere. No autograd; [any-thread].
#pragma once

#include <ATen/core/Tensor.h>

namespace coupler::context_parallel {

// query: [batch, heads, tokens, size]; key and value: [batch, key heads, their tokens, size], each
// key head for a group of query heads.
struct Block {
  at::Tensor query, key, value;
  bool causal = false;  // token i sees tokens up to i, of as many
  double scale = 1;     // of scores
};

struct Attended {
  at::Tensor output;       // [batch, heads, tokens, size]
  at::Tensor log_weights;  // [batch, heads, tokens]: the logarithm of the sum of exp(scores)
};
Attended attend(const Block& block);

// Adds a block's result to that of other keys, as if it had been one attention; an undefined result
// takes the block's memory. Results are of fp32, or fp64 if those are.
void add_block(Attended& all, const Attended& block);

// The gradients of a block. output and log_weights are those of the whole attention, of the block's
// queries; so is the gradient of the output.
struct BlockGradients {
  at::Tensor query, key, value;
};
BlockGradients backward(const Block& block, const Attended& all, const at::Tensor& gradient);

}  // namespace coupler::context_parallel
