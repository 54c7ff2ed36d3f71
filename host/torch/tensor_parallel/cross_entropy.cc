#include "tensor_parallel/cross_entropy.h"

#include <ATen/Functions.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tensors/tensor_ops.h"

namespace coupler::tensor_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The loss of each row, as in Megatron-LM (Shoeybi et al. 2019, section 3): three numbers of each
// row are exchanged, its largest logit, then the sum of exponentials and the target's logit.
struct DividedLosses : torch::autograd::Function<DividedLosses> {
  // target: of the whole vocabulary, in range.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits,
                            const at::Tensor& target, const Group& group) {
    const int64_t part = logits.size(1);
    const bool narrow = c10::elementSize(logits.scalar_type()) < 4;
    const at::Tensor wide = narrow ? logits.to(at::kFloat) : logits;
    const at::Tensor largest = std::get<0>(wide.max(1)).contiguous();
    group->run(tensors::all_reduce_op(largest, DB_MAX));
    const at::Tensor shifted = wide - largest.unsqueeze(1);
    const at::Tensor own = target - part * group->rank();
    const at::Tensor elsewhere = own.lt(0).logical_or(own.ge(part));
    const at::Tensor index = own.masked_fill(elsewhere, 0).unsqueeze(1);
    const at::Tensor at_target = shifted.gather(1, index).squeeze(1).masked_fill(elsewhere, 0);
    const at::Tensor weights = shifted.exp_();
    const at::Tensor sums = at::stack({weights.sum(1), at_target});
    group->run(tensors::all_reduce_op(sums, DB_SUM));
    const at::Tensor probabilities = weights.div_(sums[0].unsqueeze(1)).to(logits.scalar_type());
    ctx->save_for_backward({probabilities, index, elsewhere});
    return sums[0].log() - sums[1];
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    refuse_create_graph();
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &probabilities = saved[0], &index = saved[1], &elsewhere = saved[2];
    const at::Tensor scale = gradients[0].unsqueeze(1);
    const at::Tensor target = scale.masked_fill(elsewhere.unsqueeze(1), 0).neg();
    const at::Tensor result = probabilities.mul(scale).to(probabilities.scalar_type());
    result.scatter_add_(1, index, target.to(result.scalar_type()));
    return {result, at::Tensor(), at::Tensor()};
  }
};

void check(const at::Tensor& logits, const at::Tensor& target, int64_t ignored,
           const Group& group) {
  const bool fits = logits.dim() == 2 && logits.is_floating_point() && target.dim() == 1 &&
                    target.scalar_type() == at::kLong && target.size(0) == logits.size(0);
  if (!fits) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("parallel_cross_entropy: logits are [{}] and targets [{}] of {}",
                            fmt::join(logits.sizes(), ", "), fmt::join(target.sizes(), ", "),
                            c10::toString(target.scalar_type())),
                {.subject = "parallel_cross_entropy",
                 .hint = "pass logits of [rows, part of the vocabulary] and int64 targets of "
                         "[rows]: flatten batch and positions"});
  }
  if (!target.is_cpu()) return;  // reading one would wait for the device
  const at::Tensor counted = target.masked_select(target.ne(ignored));
  const int64_t classes = logits.size(1) * group->size();
  if (counted.numel() == 0) return;
  const int64_t least = counted.min().item<int64_t>(), most = counted.max().item<int64_t>();
  if (least >= 0 && most < classes) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("parallel_cross_entropy: a target is {}, but the {} parts have {} classes "
                  "together",
                  least < 0 ? least : most, group->size(), classes),
      {.subject = "parallel_cross_entropy", .hint = "check the targets, and ignore_index"});
}

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                         const ParallelCrossEntropyOptions& options, const Group& group) {
  check(logits, target, options.ignore_index, group);
  const at::Tensor ignored = target.eq(options.ignore_index);
  const at::Tensor losses =
      DividedLosses::apply(logits, target.masked_fill(ignored, 0), group).masked_fill(ignored, 0);
  switch (options.reduction) {
    case at::Reduction::Mean:
      return losses.sum() / ignored.logical_not().sum();
    case at::Reduction::Sum:
      return losses.sum();
    default:
      return losses;
  }
}

}  // namespace coupler::tensor_parallel
