#include "precision/cross_entropy.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

namespace coupler::precision {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Calls action(first, count) for parts of the rows that take up to `bytes` in fp32.
template <class Action>
void in_parts(const at::Tensor& logits, int64_t bytes, const Action& action) {
  const int64_t rows = logits.size(0);
  const int64_t row_bytes = logits.size(1) * int64_t{sizeof(float)};
  const int64_t most = std::max<int64_t>(1, bytes / row_bytes);
  for (int64_t first = 0; first < rows; first += most) action(first, std::min(most, rows - first));
}

// logits [n, classes], target [n]: the loss of every row, [n] in fp32. Where the target is to be
// ignored, use any class.
struct RowLosses : torch::autograd::Function<RowLosses> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& target, int64_t converted_bytes) {
    at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
    in_parts(logits, converted_bytes, [&](int64_t first, int64_t count) {
      const at::Tensor part = at::log_softmax(logits.narrow(0, first, count), 1, at::kFloat);
      const at::Tensor at_target = part.gather(1, target.narrow(0, first, count).unsqueeze(1));
      losses.narrow(0, first, count).copy_(at_target.squeeze(1).neg());
    });
    context->save_for_backward({logits, target, losses});
    context->saved_data["converted_bytes"] = converted_bytes;
    return losses;
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &logits = saved[0], &target = saved[1];
    const at::Tensor& gradient = outputs[0];
    const at::Tensor at_target = at::expm1(-saved[2]) * gradient;
    const auto of_rows = [&](int64_t first, int64_t count, at::ScalarType type) {
      const auto part = [&](const at::Tensor& tensor) { return tensor.narrow(0, first, count); };
      return at::softmax(part(logits), 1, type)
          .mul_(part(gradient).unsqueeze(1))
          .scatter_(1, part(target).unsqueeze(1), part(at_target).unsqueeze(1).to(type));
    };
    if (logits.scalar_type() == at::kBFloat16) {
      return {of_rows(0, logits.size(0), at::kBFloat16), at::Tensor(), at::Tensor()};
    }
    // fp16 cannot hold small probabilities before they are multiplied by the loss scale.
    at::Tensor result = at::empty_like(logits);
    in_parts(logits, context->saved_data["converted_bytes"].toInt(),
             [&](int64_t first, int64_t count) {
               result.narrow(0, first, count).copy_(of_rows(first, count, at::kFloat));
             });
    return {result, at::Tensor(), at::Tensor()};
  }
};

// The common case: class numbers, one row each, without weights or smoothing.
bool is_plain(const at::Tensor& logits, const at::Tensor& target,
              const std::optional<at::Tensor>& weight, double label_smoothing) {
  return logits.dim() == 2 && target.dim() == 1 && target.scalar_type() == at::kLong &&
         target.size(0) == logits.size(0) && !(weight && weight->defined()) &&
         label_smoothing == 0 && logits.numel() > 0;
}

at::Tensor plain_loss(const at::Tensor& logits, const at::Tensor& target, int64_t reduction,
                      int64_t ignored, int64_t converted_bytes) {
  const at::Tensor skipped = target == ignored;
  const at::Tensor rows = RowLosses::apply(logits, target.masked_fill(skipped, 0), converted_bytes)
                              .masked_fill(skipped, 0);
  switch (reduction) {
    case at::Reduction::Mean:
      return rows.sum() / skipped.logical_not().sum();
    case at::Reduction::Sum:
      return rows.sum();
    default:
      return rows;
  }
}

TORCH_LIBRARY_IMPL(aten, AutocastCUDA, library) {
  library.impl("cross_entropy_loss", [](const at::Tensor& logits, const at::Tensor& target,
                                        const std::optional<at::Tensor>& weight, int64_t reduction,
                                        c10::SymInt ignore_index, double label_smoothing) {
    return cross_entropy(logits, target, weight, reduction, std::move(ignore_index),
                         label_smoothing);
  });
}

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                         const std::optional<at::Tensor>& weight, int64_t reduction,
                         c10::SymInt ignore_index, double label_smoothing,
                         int64_t converted_bytes) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::autocast_dispatch_keyset);
  const bool is_short = logits.scalar_type() == at::kBFloat16 || logits.scalar_type() == at::kHalf;
  if (is_short && is_plain(logits, target, weight, label_smoothing)) {
    return plain_loss(logits, target, reduction, ignore_index.expect_int(), converted_bytes);
  }
  const auto wide = [](const at::Tensor& tensor) {
    return tensor.is_floating_point() && tensor.scalar_type() != at::kDouble ? tensor.to(at::kFloat)
                                                                             : tensor;
  };
  return at::cross_entropy_loss_symint(wide(logits), wide(target),
                                       weight ? std::optional(wide(*weight)) : weight, reduction,
                                       std::move(ignore_index), label_smoothing);
}

}  // namespace coupler::precision
