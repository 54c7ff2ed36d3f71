// What the ranks of a tensor group exchange inside divided layers, with the gradients that belong
// to it. Collective over the group; on the thread that runs forward or backward, so that all ranks
// do it in the same order.
//
// With parallel.sequence, each rank has a part of the tokens between divided layers, as in
// Korthikanti et al. 2022: along the dimension `dim`, part i of equal ones on rank i.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "tensor_parallel/arriving_tokens.h"
#include "tensor_parallel/input_gradient.h"
#include "tensor_parallel/pending_exchange.h"

namespace coupler::tensor_parallel {

// x, converted to `type`, as the input of divided layers only, or of what works on divided values:
// each rank computes a part of its gradient, and backward sums them over the group. Layers that get
// the same x one after another share one sum.
at::Tensor sum_gradient(const at::Tensor& x, at::ScalarType type, const Group& group);

// A product's result, whose gradient backward sums over the group: in a copy, since autograd may
// give the same gradient to others, such as both summands of a sum.
at::Tensor sum_gradient_of_result(const at::Tensor& result, const Group& group);

// Sums values over the group, in place; the gradient of each rank's summand is that of the sum, so
// autograd need not know. The values were just computed, and no backward needs them.
void sum_values(const at::Tensor& values, const Group& group);

// The ranks' values one after another along the last dimension. The gradient is each rank's own
// part, if every rank computes the same with the result.
at::Tensor gather_last(const at::Tensor& own, const Group& group);

// This rank's part of x, which has the same values on every rank, along the last dimension.
at::Tensor part_of_last(const at::Tensor& x, const Group& group);

// All tokens, converted to `type`, as the input of divided layers only: backward sums the ranks'
// gradients, and each gets those of its tokens. Layers that get the same x share what was gathered.
at::Tensor gather_for_layers(const at::Tensor& x, at::ScalarType type, int64_t dim,
                             const Group& group);

// What a layer that takes part in overlap gets of its input.
struct LayerInput {
  at::Tensor values;
  // Takes the layer's part of the gradient; null if there is none, or if autograd brings it.
  InputGradientPtr gradient = nullptr;
  // The tokens of `values` that are still on their way; null: all are there.
  std::shared_ptr<ArrivingTokens> arriving = nullptr;

  void complete();  // waits for them
};

// As sum_gradient, or, with the dimension of tokens, as gather_for_layers, whose sum of gradients
// starts when the last layer that promised its part has given it. Tokens arrive in that many chunks
// at the first of these layers, which takes them before the next one runs.
LayerInput input_for_overlap(const at::Tensor& x, at::ScalarType type, std::optional<int64_t> dim,
                             int64_t chunks, const Group& group);

// All tokens, for what every rank computes alike: its gradients are the same, and each takes those
// of its tokens.
at::Tensor gather_tokens(const at::Tensor& x, int64_t dim, const Group& group);

// What follows on this thread has all tokens, until one of the functions below makes a part.
void end_of_parts();

// What follows on this thread has this part of the tokens of [batch, tokens, features]: dropout
// then takes its part of the mask. Returns it.
at::Tensor begin_of_parts(const at::Tensor& made, int64_t dim, const Group& group);

// The tokens of all ranks, unseen by autograd.
at::Tensor all_tokens(const at::Tensor& own, int64_t dim, const Group& group);

// Throws if the backward that runs makes a graph of its own.
void refuse_create_graph();

// This rank's tokens of the sum of the ranks' summands. Backward gathers the gradients of all.
at::Tensor own_tokens_of_sum(const at::Tensor& summand, int64_t dim, const Group& group);

// This rank's tokens of x, which has the same values on every rank. Backward gathers the gradients
// of all.
at::Tensor own_tokens(const at::Tensor& x, int64_t dim, const Group& group);

}  // namespace coupler::tensor_parallel
