#include "context_parallel/sequence_order.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include "base/error.h"

namespace coupler::context_parallel {

at::Tensor positions_of(SequenceOrder order, int64_t length, int ranks, int rank,
                        const std::string& what) {
  const bool balanced = order == SequenceOrder::kBalanced;
  const int64_t chunks = balanced ? 2 * ranks : ranks;
  if (length == 0 || length % chunks != 0) {
    fail_argument(fmt::format("{} has a sequence of {}, which cannot be divided into {} chunks, {} "
                              "for each of {} ranks",
                              what, length, chunks, balanced ? 2 : 1, ranks),
                  "parallel.context",
                  fmt::format("pad sequences to a multiple of {}, or choose a smaller "
                              "parallel.context",
                              chunks));
  }
  const int64_t size = length / chunks;
  if (!balanced) return at::arange(rank * size, (rank + 1) * size, at::kLong);
  const int64_t last = chunks - 1 - rank;
  return at::cat({at::arange(rank * size, (rank + 1) * size, at::kLong),
                  at::arange(last * size, (last + 1) * size, at::kLong)});
}

at::Tensor part_of(const at::Tensor& whole, int64_t dim, SequenceOrder order, int ranks, int rank,
                   const std::string& what) {
  const at::Tensor positions = positions_of(order, whole.size(dim), ranks, rank, what);
  return whole.index_select(dim, positions.to(whole.device()));
}

}  // namespace coupler::context_parallel
