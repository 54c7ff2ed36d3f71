// ArrivingTokens: the tokens of all ranks on their way, in chunks, so that the first layer that
// gets them multiplies one chunk while the next ones arrive. Every rank makes the same ones in the
// same order. Used by one thread; collective over the group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>

#include "tensor_parallel/pending_exchange.h"

namespace coupler::tensor_parallel {

class ArrivingTokens {
 public:
  // Some tokens of each rank: `size` ones from `begin` of its part on.
  struct Chunk {
    int64_t begin = 0, size = 0;
    at::Tensor values;  // [ranks, …], dense
  };

  // Sends this rank's part in `chunks` chunks, at most one a token. dim: of the tokens.
  ArrivingTokens(const at::Tensor& own, int64_t dim, int64_t chunks, Group group);

  // All tokens, in order, unseen by autograd; complete when no chunk is left.
  const at::Tensor& whole() const { return whole_; }
  // Waits for the next chunk, which is then in its place. Empty: none is left.
  std::optional<Chunk> next();
  void finish();  // waits for all

  // A view of the chunk's place in `all`, which has all tokens in the same dimension: [ranks, …].
  at::Tensor place_of(const Chunk& chunk, const at::Tensor& all) const;

 private:
  struct Arriving {
    int64_t begin, size;
    PendingExchange exchange;
  };

  const Group group_;
  const int64_t dim_;
  // The same memory: writes to what autograd does not know are not changes of what it does.
  at::Tensor whole_, memory_;
  std::deque<Arriving> arriving_;
};

}  // namespace coupler::tensor_parallel
