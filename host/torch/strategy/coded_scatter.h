// CodedScatter: a reduce-scatter of fp32 through a GradientCodec: each rank sends every other rank
// its part, encoded, and sums what it receives in fp32 (its own contribution loses nothing).
// Collective on the communicator, whose thread rules apply.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "residency/buffer_pool.h"
#include "strategy/gradient_codec.h"

namespace coupler {

class CodedScatter {
 public:
  // values: [sum of counts] of kFloat, by rank; counts[r] of them are for rank r. own: [counts of
  // this rank], may alias their place in values. error: like values, or undefined; is added to
  // values, then set to what encoding lost. The tensors must stay valid until wait() has returned.
  // Without overlap the collective is complete on return.
  CodedScatter(Communicator& comm, const GradientCodec& codec, const std::vector<uint64_t>& counts,
               at::Tensor values, at::Tensor own, at::Tensor error, BufferPool& pool, bool overlap);
  CodedScatter(CodedScatter&&) = default;

  // Waits; `own` then holds the sum.
  void wait();

 private:
  const GradientCodec* codec_;
  int64_t message_ = 0;  // bytes from each rank
  int others_;
  at::Tensor own_values_, own_;
  std::vector<uint64_t> to_send_, to_receive_;
  BufferPool::Buffer sent_, received_;
  Work work_;  // last: its destructor waits before the memory is freed
};

}  // namespace coupler
