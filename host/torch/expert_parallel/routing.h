// Which tokens go to which expert, and the exchange of their rows with the ranks that have the
// experts. One thread; the exchange, in backward too, is collective over the group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace coupler::expert_parallel {

using Group = std::shared_ptr<comm::Communicator>;

// The choices that experts take, in the order of the experts, and for each in that of the tokens.
struct Routing {
  at::Tensor choices;         // [taken] of int64: token * top_k + k
  std::vector<int64_t> rows;  // how many each expert takes
  int64_t dropped = 0;        // choices of full experts
  // Whether rows are assumed, here and on the other ranks: tokens of a dry run have no values.
  bool assumed = false;
};

// chosen: [tokens, top_k] of int64, the experts that each token chose. capacity: how many each
// expert takes at most.
Routing route(const at::Tensor& chosen, int64_t experts, int64_t capacity);
// The same for tensors without values: every expert takes as many as the others, the first ones one
// more if they do not divide, so that none is full.
Routing assume_balance(const at::Tensor& chosen, int64_t experts);

// Where the rows of this rank's experts come from.
struct Arrivals {
  std::vector<int64_t> sent, received;  // rows to and from each rank
  at::Tensor by_expert;                 // [rows received]: their order by expert
  at::Tensor by_rank;                   // the reverse
  std::vector<int64_t> rows;            // how many each of this rank's experts gets
};

// routing: of the tokens of this rank; a rank has as many experts as others, in order. like: of the
// device on which the orders are used. Collective.
Arrivals arrivals_of(const Routing& routing, const Group& group, const at::Tensor& like);

// The first sent[0] rows to rank 0, the next to rank 1, …; received[r] rows come from rank r. The
// gradient takes the way back.
at::Tensor exchange_rows(const at::Tensor& rows, const std::vector<int64_t>& sent,
                         const std::vector<int64_t>& received, const Group& group);

}  // namespace coupler::expert_parallel
