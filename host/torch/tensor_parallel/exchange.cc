#include "tensor_parallel/exchange.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>

#include <utility>
#include <vector>

#include "tensors/tensor_ops.h"

namespace coupler::tensor_parallel {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

WeakTensor weak(const at::Tensor& tensor) { return WeakTensor(tensor.getIntrusivePtr()); }
WeakTensor none() {
  return WeakTensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>());
}

// The last input of divided layers on this thread, and what its first layer made of it. Kept alive
// by what these layers save for backward.
struct LastInput {
  WeakTensor given = none(), shared = none();
};
thread_local LastInput last_input;

at::Tensor summed(const at::Tensor& gradient, const Group& group) {
  if (at::GradMode::is_enabled()) {
    throw Error(ErrorCode::kUnsupported,
                "gradients of gradients (create_graph) through a layer that is divided over a "
                "tensor group are not supported",
                {.subject = "parallel.tensor",
                 .hint = "set parallel.tensor to 1 for this training, or leave the layer out of "
                         "the plan"});
  }
  // The layers computed it for this input alone, so it may be overwritten.
  const at::Tensor values = gradient.contiguous();
  group->run(tensors::all_reduce_op(values, DB_SUM));
  return values;
}

}  // namespace

at::Tensor sum_gradient(const at::Tensor& x, const Group& group) {
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return x;
  LastInput& last = last_input;
  if (last.given.lock().get() == x.unsafeGetTensorImpl()) {
    if (auto shared = last.shared.lock(); shared.defined()) return at::Tensor(std::move(shared));
  }
  const at::Tensor shared = x.view_as(x);
  shared.register_hook([group](const at::Tensor& gradient) { return summed(gradient, group); });
  last = {weak(x), weak(shared)};
  return shared;
}

void sum_values(const at::Tensor& values, const Group& group) {
  const at::NoGradGuard no_grad;
  const at::Tensor plain = values.detach();
  if (plain.is_contiguous()) {
    group->run(tensors::all_reduce_op(plain, DB_SUM));
    return;
  }
  const at::Tensor dense = plain.contiguous();
  group->run(tensors::all_reduce_op(dense, DB_SUM));
  plain.copy_(dense);
}

at::Tensor gather_last(const at::Tensor& own, const Group& group) {
  std::vector<at::Tensor> parts;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor mine = own.detach().contiguous();
    std::vector<int64_t> sizes = mine.sizes().vec();
    sizes.insert(sizes.begin(), group->size());
    const at::Tensor all = at::empty(sizes, mine.options());
    group->run(tensors::all_gather_op(mine, all));
    parts = all.unbind();
  }
  parts[static_cast<size_t>(group->rank())] = own;  // the only one with a gradient
  return at::cat(parts, -1);
}

at::Tensor split_last(const at::Tensor& x, const Group& group) {
  const int64_t part = x.size(-1) / group->size();
  return sum_gradient(x, group).narrow(-1, part * group->rank(), part);
}

}  // namespace coupler::tensor_parallel
