// SyncBatchNorm: batch normalization with statistics over the batches of all ranks, like the Python
// module torch.nn.SyncBatchNorm. Replaces BatchNorm1d, 2d and 3d in a model's constructor; with one
// process, or without an Accelerator, it acts exactly like them. Used by the training thread; every
// rank must run the same SyncBatchNorm layers in the same order.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

namespace coupler {

// The implementation of SyncBatchNorm.
class SyncBatchNormImpl : public torch::nn::Module {
 public:
  // num_features = C of inputs [N, C] or [N, C, …].
  explicit SyncBatchNormImpl(int64_t num_features)
      : SyncBatchNormImpl(torch::nn::BatchNormOptions(num_features)) {}
  // Torch's options: eps, momentum, affine, track_running_stats.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options);

  // input: [N, C] or [N, C, ...] of a floating-point dtype; the result has the same shape.
  // Collective while training.
  torch::Tensor forward(const torch::Tensor& input);
  // Resets parameters and statistics to their initial values.
  void reset();

  // As given to the constructor.
  torch::nn::BatchNormOptions options;
  torch::Tensor weight, bias;                                    // [C]; undefined unless affine
  torch::Tensor running_mean, running_var, num_batches_tracked;  // undefined unless tracked
};
// The module holder, like torch::nn::BatchNorm2d.
TORCH_MODULE(SyncBatchNorm);

}  // namespace coupler
