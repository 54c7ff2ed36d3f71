// SyncBatchNorm: batch normalisation with the statistics of the batches of all ranks, as torch's
// Python module of that name. Takes the place of BatchNorm1d, 2d and 3d in a model's constructor;
// with one process, or without an Accelerator, it is exactly those. Used by the thread that trains;
// every rank must run the same SyncBatchNorm layers in the same order.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

namespace coupler {

// The module behind SyncBatchNorm.
class SyncBatchNormImpl : public torch::nn::Module {
 public:
  // num_features = C of inputs [N, C] or [N, C, …].
  explicit SyncBatchNormImpl(int64_t num_features)
      : SyncBatchNormImpl(torch::nn::BatchNormOptions(num_features)) {}
  // As torch's own options: eps, momentum, affine, track_running_stats.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options);

  // input: [N, C] or [N, C, ...] of a floating type; the result has its shape. Collective while
  // training.
  torch::Tensor forward(const torch::Tensor& input);
  // Gives parameters and statistics the values they have at first.
  void reset();

  // As given to the constructor.
  torch::nn::BatchNormOptions options;
  torch::Tensor weight, bias;                                    // [C]; undefined unless affine
  torch::Tensor running_mean, running_var, num_batches_tracked;  // undefined unless tracked
};
// The holder, as torch::nn::BatchNorm2d is one.
TORCH_MODULE(SyncBatchNorm);

}  // namespace coupler
