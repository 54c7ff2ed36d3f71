// TensorDataset: samples are the rows of one tensor, their targets the rows of another. The fastest
// dataset for a DataLoader: a batch costs one gather per tensor, not one call per sample.
// Immutable; any thread may read.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>

#include <cstddef>
#include <optional>

namespace coupler {

class TensorDataset
    : public torch::data::datasets::BatchDataset<TensorDataset, torch::data::Example<>> {
 public:
  // Throws Error(kInvalidArgument) unless both have the same number of rows (size(0)).
  TensorDataset(at::Tensor data, at::Tensor target);

  // Returns one sample, as views.
  torch::data::Example<> get(size_t index) const;

  // Returns the rows in the order of the indices, as new tensors.
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override;

  // The number of rows.
  std::optional<size_t> size() const override;

 private:
  at::Tensor data_;
  at::Tensor target_;
};

}  // namespace coupler
