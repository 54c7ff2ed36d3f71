// The Accelerator's collectives over tensors.
#include <ATen/Functions.h>
#include <coupler/accelerator.h>

#include "comm/tensor_ops.h"
#include "train/accelerator_impl.h"

namespace coupler {
namespace {

db_reduce to_db_reduce(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return DB_SUM;
    case Reduction::kMean:
      return DB_AVG;
    case Reduction::kMin:
      return DB_MIN;
    case Reduction::kMax:
      return DB_MAX;
    case Reduction::kProduct:
      return DB_PROD;
  }
  return DB_SUM;
}

// A contiguous copy that a collective may overwrite.
at::Tensor copy_to_send(const at::Tensor& tensor) {
  require_dense_host(tensor);
  return tensor.detach().clone(at::MemoryFormat::Contiguous);
}

}  // namespace

at::Tensor Accelerator::gather(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  require_dense_host(tensor);
  const at::Tensor input = tensor.detach().contiguous();
  std::vector<int64_t> shape = input.dim() == 0 ? std::vector<int64_t>(1, 1) : input.sizes().vec();
  shape[0] *= world();
  const at::Tensor output = at::empty(shape, input.options());
  impl_->comm->run(all_gather_op(input, output));
  return output;
}

at::Tensor Accelerator::reduce(const at::Tensor& tensor, Reduction reduction) {
  at::NoGradGuard no_grad;
  const at::Tensor result = copy_to_send(tensor);
  impl_->comm->run(all_reduce_op(result, to_db_reduce(reduction)));
  return result;
}

at::Tensor Accelerator::broadcast(const at::Tensor& tensor, int from) {
  at::NoGradGuard no_grad;
  const at::Tensor result = copy_to_send(tensor);
  impl_->comm->run(broadcast_op(result, from));
  return result;
}

void Accelerator::wait_for_everyone() {
  db_op op{};
  op.kind = DB_BARRIER;
  op.dtype = DB_U8;
  op.memory = DB_MEMORY_HOST;
  impl_->comm->run(op);
}

}  // namespace coupler
