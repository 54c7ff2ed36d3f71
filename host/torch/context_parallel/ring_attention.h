// Ring attention (Liu et al. 2023): every rank keeps its queries, and keys and values travel around
// the ring of ranks, a step ahead of the block that attends to them; in backward their gradients
// follow, while the next block is computed. Collective over the group, on the thread that runs
// forward or backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "comm/communicator.h"

namespace coupler::context_parallel {

// query, key, value: this rank's tokens, in balanced order (sequence_order.h) if causal; see Block
// for shapes. Returns [batch, heads, tokens, size], as differentiable as attention.
at::Tensor ring_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          bool causal, double scale,
                          const std::shared_ptr<comm::Communicator>& group);

}  // namespace coupler::context_parallel
