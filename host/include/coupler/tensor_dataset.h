// TensorDataset: samples that are rows of a tensor, with their targets in the rows of another. The
// fastest thing to give a DataLoader: a batch is one gather a tensor, not one call a sample.
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
  // Throws Error(kInvalidArgument) unless both have as many rows (size(0)).
  TensorDataset(at::Tensor data, at::Tensor target);

  // The sample itself, as a view.
  torch::data::Example<> get(size_t index) const;

  // The rows in the order of the indices, as new tensors.
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override;

  // The number of rows.
  std::optional<size_t> size() const override;

 private:
  at::Tensor data_;
  at::Tensor target_;
};

}  // namespace coupler
