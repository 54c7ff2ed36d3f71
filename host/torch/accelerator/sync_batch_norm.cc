#include <ATen/Functions.h>
#include <coupler/error.h>
#include <coupler/sync_batch_norm.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include "accelerator/accelerator.h"
#include "tensors/second_order.h"
#include "tensors/tensor_ops.h"

namespace coupler {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Views [C] as [1, C, 1, …], to combine with an input of `dims` dimensions.
at::Tensor per_channel(const at::Tensor& values, int64_t dims) {
  std::vector<int64_t> shape(static_cast<size_t>(dims), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

std::vector<int64_t> all_but_channel(int64_t dims) {
  std::vector<int64_t> result{0};
  for (int64_t d = 2; d < dims; ++d) result.push_back(d);
  return result;
}

// y = (x - mean) * invstd with mean and invstd over the batches of all ranks.
//   dx = invstd * (dy - mean(dy) - xhat * mean(dy * xhat)), with the means also over all ranks.
struct Normalize : torch::autograd::Function<Normalize> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& input, double eps) {
    const int64_t dims = input.dim(), channels = input.size(1);
    const double count = static_cast<double>(input.numel() / channels);
    comm::Communicator& comm = *current_communicator();
    // Every rank's (count, mean, sum of squared deviations), combined as in Chan et al. (1979).
    // Sums of squares would suffer from cancellation.
    const at::Tensor mean = input.mean(all_but_channel(dims)).to(at::kDouble);
    const at::Tensor deviations =
        input.var(all_but_channel(dims), /*unbiased=*/false).to(at::kDouble) * count;
    const at::Tensor mine =
        at::cat({at::full({channels}, count, mean.options()), mean, deviations});
    const at::Tensor all = at::empty({comm.size(), 3, channels}, mean.options());
    comm.run(tensors::all_gather_op(mine, all));
    const at::Tensor counts = all.select(1, 0), means = all.select(1, 1);
    const at::Tensor total = counts.sum(0);
    const at::Tensor global_mean = (counts * means).sum(0) / total;
    const at::Tensor global_var =
        (all.select(1, 2) + counts * (means - global_mean).square()).sum(0) / total;
    const auto type = input.scalar_type();
    const at::Tensor invstd = (global_var + eps).rsqrt().to(type);
    const at::Tensor normal =
        (input - per_channel(global_mean.to(type), dims)) * per_channel(invstd, dims);
    ctx->save_for_backward({normal, invstd});
    ctx->saved_data["count"] = total[0].item<double>();
    const at::Tensor unbiased = global_var * (total / (total - 1).clamp_min(1));
    variable_list outputs{normal, global_mean, unbiased};
    ctx->mark_non_differentiable({outputs[1], outputs[2]});
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    tensors::refuse_create_graph("SyncBatchNorm", "SyncBatchNorm",
                                 "use a norm of each sample, such as GroupNorm, in a model whose "
                                 "gradients are penalized");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &normal = saved[0], &invstd = saved[1], &grad = grads[0];
    const int64_t dims = normal.dim();
    const at::Tensor sums =
        at::stack({grad.sum(all_but_channel(dims)), (grad * normal).sum(all_but_channel(dims))})
            .to(at::kDouble);
    current_communicator()->run(tensors::all_reduce_op(sums, DB_SUM));
    const at::Tensor means = (sums / ctx->saved_data["count"].toDouble()).to(grad.scalar_type());
    const at::Tensor input_grad =
        (grad - per_channel(means[0], dims) - normal * per_channel(means[1], dims)) *
        per_channel(invstd, dims);
    return {input_grad, at::Tensor()};
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& given) : options(given) {
  reset();
}

void SyncBatchNormImpl::reset() {
  const int64_t channels = options.num_features();
  if (options.affine()) {
    weight = register_parameter("weight", at::ones({channels}));
    bias = register_parameter("bias", at::zeros({channels}));
  }
  if (options.track_running_stats()) {
    running_mean = register_buffer("running_mean", at::zeros({channels}));
    running_var = register_buffer("running_var", at::ones({channels}));
    num_batches_tracked = register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
  }
}

torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& input) {
  if (input.dim() < 2 || input.size(1) != options.num_features()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("SyncBatchNorm of {} channels got an input of shape [{}]; it needs [N, {}] "
                    "or [N, {}, …]",
                    options.num_features(), fmt::join(input.sizes(), ", "), options.num_features(),
                    options.num_features()));
  }
  const bool batch_statistics = is_training() || !running_mean.defined();
  const bool track = is_training() && running_mean.defined();
  double momentum = options.momentum().value_or(0.0);
  if (track) {
    num_batches_tracked.add_(1);
    if (!options.momentum().has_value()) momentum = 1.0 / num_batches_tracked.item<double>();
  }
  if (!batch_statistics || current_communicator() == nullptr) {
    return at::batch_norm(input, weight, bias, running_mean, running_var, batch_statistics,
                          momentum, options.eps(), /*cudnn_enabled=*/false);
  }
  // Autocast may pass 16-bit inputs, in which statistics would be too inexact.
  const at::ScalarType type = input.scalar_type();
  const bool narrow = c10::elementSize(type) < 4;
  const variable_list result =
      Normalize::apply(narrow ? input.to(at::kFloat) : input, options.eps());
  if (track) {
    at::NoGradGuard no_grad;
    running_mean.lerp_(result[1].to(running_mean.scalar_type()), momentum);
    running_var.lerp_(result[2].to(running_var.scalar_type()), momentum);
  }
  if (!weight.defined()) return result[0].to(type);
  const at::Tensor output =
      result[0] * per_channel(weight, input.dim()) + per_channel(bias, input.dim());
  return narrow ? output.to(type) : output;
}

}  // namespace coupler
