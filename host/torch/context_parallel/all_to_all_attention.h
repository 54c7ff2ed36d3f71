// Attention divided by heads (DeepSpeed-Ulysses, Jacobs et al. 2023): an all-to-all gives every
// rank all tokens of some heads, which it computes with LibTorch's attention, and another one gives
// it back its own tokens of all heads. Collective over the group, on the thread that runs forward
// or backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "comm/communicator.h"

namespace coupler::context_parallel {

// query, key, value: this rank's tokens, in turns (sequence_order.h); see Block for shapes. Throws
// Error(kInvalidArgument) if the query's heads do not divide.
at::Tensor all_to_all_attention(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, bool causal, double scale,
                                const std::shared_ptr<comm::Communicator>& group);

}  // namespace coupler::context_parallel
