// What the ranks of a tensor group exchange inside divided layers, with the gradients that belong
// to it. Collective over the group; on the thread that runs forward or backward, so that all ranks
// do it in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "comm/communicator.h"

namespace coupler::tensor_parallel {

using Group = std::shared_ptr<comm::Communicator>;

// x as the input of divided layers only, or of what works on divided values: each rank computes a
// part of its gradient, and backward sums them over the group. Layers that get the same x one after
// another share one sum.
at::Tensor sum_gradient(const at::Tensor& x, const Group& group);

// Sums values over the group, in place; the gradient of each rank's summand is that of the sum, so
// autograd need not know. The values were just computed, and no backward needs them.
void sum_values(const at::Tensor& values, const Group& group);

// The ranks' values one after another along the last dimension. The gradient is each rank's own
// part, if every rank computes the same with the result.
at::Tensor gather_last(const at::Tensor& own, const Group& group);

// This rank's part of x, which is the same on every rank, along the last dimension. Backward puts
// the gradients of all parts together.
at::Tensor split_last(const at::Tensor& x, const Group& group);

}  // namespace coupler::tensor_parallel
