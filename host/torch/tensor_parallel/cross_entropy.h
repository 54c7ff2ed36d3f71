// The loss of language models whose logits are divided over a tensor group.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/tensor_parallel.h>

#include "tensor_parallel/exchange.h"

namespace coupler::tensor_parallel {

// coupler::parallel_cross_entropy over the group.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                         const ParallelCrossEntropyOptions& options, const Group& group);

}  // namespace coupler::tensor_parallel
