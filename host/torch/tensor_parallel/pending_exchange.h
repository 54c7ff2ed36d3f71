// PendingExchange: an exchange among the ranks of a tensor group that is under way, with the
// tensors that it reads and writes. Every rank starts the same ones in the same order. Used by one
// thread at a time; if it ends without wait(), it waits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "comm/communicator.h"

namespace coupler::tensor_parallel {

using Group = std::shared_ptr<comm::Communicator>;

class PendingExchange {
 public:
  // The sum of the ranks' values, which are dense, in their place.
  static PendingExchange sum(const at::Tensor& values, const Group& group);
  // Part i of the sum of the ranks' parts [ranks, …], into `own` […] of rank i. Both are dense.
  static PendingExchange sum_of_parts(const at::Tensor& parts, const at::Tensor& own,
                                      const Group& group);
  // The ranks' values, which are dense, into `all` [ranks, …].
  static PendingExchange gather(const at::Tensor& own, const at::Tensor& all, const Group& group);
  PendingExchange(PendingExchange&&) noexcept = default;
  PendingExchange& operator=(PendingExchange&&) = delete;  // would let go of tensors in use
  ~PendingExchange() = default;

  // The result, once it is complete, or in the order of the device's stream. Throws as
  // comm::Work::wait.
  at::Tensor wait();

 private:
  PendingExchange(at::Tensor sent, at::Tensor result, comm::Work work);

  at::Tensor sent_, result_;
  comm::Work work_;  // ends before the tensors that it uses
};

// The tokens of x along `dim`, which are those of every rank, by rank: a view [ranks, …].
at::Tensor by_rank(const at::Tensor& x, int64_t dim, const Group& group);

}  // namespace coupler::tensor_parallel
