#include "tensor_parallel/pending_exchange.h"

#include <utility>

#include "tensors/tensor_ops.h"

namespace coupler::tensor_parallel {

PendingExchange::PendingExchange(at::Tensor sent, at::Tensor result, comm::Work work)
    : sent_(std::move(sent)), result_(std::move(result)), work_(std::move(work)) {}

PendingExchange PendingExchange::sum(const at::Tensor& values, const Group& group) {
  return {values, values, group->submit(tensors::all_reduce_op(values, DB_SUM))};
}

PendingExchange PendingExchange::sum_of_parts(const at::Tensor& parts, const at::Tensor& own,
                                              const Group& group) {
  return {parts, own, group->submit(tensors::reduce_scatter_op(parts, own, DB_SUM))};
}

PendingExchange PendingExchange::gather(const at::Tensor& own, const at::Tensor& all,
                                        const Group& group) {
  return {own, all, group->submit(tensors::all_gather_op(own, all))};
}

at::Tensor PendingExchange::wait() {
  work_.wait();
  return result_;
}

at::Tensor by_rank(const at::Tensor& x, int64_t dim, const Group& group) {
  return x.unflatten(dim, {group->size(), -1}).movedim(dim, 0);
}

}  // namespace coupler::tensor_parallel
