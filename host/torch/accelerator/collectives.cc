// The Accelerator's collectives over values.
#include <coupler/accelerator.h>

#include "accelerator/accelerator_impl.h"
#include "accelerator/nested_collectives.h"
#include "tensors/tensor_ops.h"

namespace coupler {

std::optional<detail::BatchSamples> Accelerator::Impl::batch_samples() const {
  const auto loader = current_loader();
  if (loader == nullptr) return std::nullopt;
  return detail::BatchSamples{loader->batch_samples(), loader->own_samples()};
}

at::Tensor Accelerator::gather(const at::Tensor& tensor, CallSite) {
  return gather_nested(detail::view_of(tensor))[0];
}

at::Tensor Accelerator::reduce(const at::Tensor& tensor, Reduction reduction, double scale,
                               CallSite) {
  return reduce_nested(detail::view_of(tensor), reduction, scale)[0];
}

at::Tensor Accelerator::broadcast(const at::Tensor& tensor, int from, CallSite) {
  return broadcast_nested(detail::view_of(tensor), from)[0];
}

std::vector<at::Tensor> Accelerator::gather_nested(const detail::NestedView& value) {
  return gather_leaves(*impl_->comm, value);
}

std::vector<at::Tensor> Accelerator::gather_metrics(const detail::NestedView& value) {
  return gather_own_rows(*impl_->comm, value, impl_->batch_samples());
}

std::vector<at::Tensor> Accelerator::reduce_nested(const detail::NestedView& value,
                                                   Reduction reduction, double scale) {
  return reduce_leaves(*impl_->comm, value, reduction, scale);
}

std::vector<at::Tensor> Accelerator::broadcast_nested(const detail::NestedView& value, int from) {
  return broadcast_leaves(*impl_->comm, value, from);
}

std::vector<at::Tensor> Accelerator::pad_nested(const detail::NestedView& value, int64_t dim,
                                                const at::Scalar& pad_index, bool pad_first) {
  return pad_leaves(*impl_->comm, value, dim, pad_index, pad_first);
}

void Accelerator::set_trigger() { impl_->trigger = true; }

bool Accelerator::check_trigger(CallSite) {
  const double any = all_reduce_number(*impl_->comm, impl_->trigger ? 1 : 0, DB_MAX);
  impl_->trigger = false;
  return any != 0;
}

void Accelerator::wait_for_everyone(CallSite) {
  db_op op{};
  op.kind = DB_BARRIER;
  op.dtype = DB_U8;
  op.memory = DB_MEMORY_HOST;
  impl_->comm->run(op);
}

}  // namespace coupler
