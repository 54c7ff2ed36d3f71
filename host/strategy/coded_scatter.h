// CodedScatter: a reduce-scatter of fp32 by way of a GradientCodec: each rank sends every other one
// its encoded part, and adds up in fp32 what it gets (of its own contribution nothing is lost).
// Collective on the communicator, whose thread rules hold.
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
  // this rank], may be their place in values. error: like values, or undefined; becomes what
  // encoding has lost, having been added to values. All stay until wait() has returned. Without
  // overlap the collective is complete on return.
  CodedScatter(Communicator& comm, const GradientCodec& codec, const std::vector<uint64_t>& counts,
               at::Tensor values, at::Tensor own, at::Tensor error, BufferPool& pool, bool overlap);
  CodedScatter(CodedScatter&&) = default;

  // own holds the sum.
  void wait();

 private:
  const GradientCodec* codec_;
  int64_t message_ = 0;  // bytes from each rank
  int others_;
  at::Tensor own_values_, own_;
  std::vector<uint64_t> to_send_, to_receive_;
  BufferPool::Buffer sent_, received_;
  Work work_;  // last: it is waited for before its memory goes
};

}  // namespace coupler
