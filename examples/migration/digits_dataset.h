// The training digits as a torch::data dataset. A value; copies share the tensors.
#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include "../digits/digits.h"

class DigitsDataset : public torch::data::datasets::Dataset<DigitsDataset> {
 public:
  explicit DigitsDataset(const Digits& digits)
      : pixels_(digits.train_pixels), labels_(digits.train_labels) {}
  torch::data::Example<> get(size_t index) override {
    const auto row = static_cast<int64_t>(index);
    return {pixels_[row], labels_[row]};
  }
  std::optional<size_t> size() const override { return static_cast<size_t>(labels_.size(0)); }

 private:
  torch::Tensor pixels_, labels_;
};
