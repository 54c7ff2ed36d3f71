// Text as a map-style dataset of byte-level samples: sample i is `sequence` bytes, and its target
// the same bytes shifted by one. Windows do not overlap. Read-only after construction.
#pragma once

#include <torch/data/datasets/base.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

class Text : public torch::data::datasets::BatchDataset<Text, torch::data::Example<>> {
 public:
  // Throws coupler::Error if the file cannot be read or is shorter than one sample.
  Text(const std::string& path, int64_t sequence);

  // Returns data and target, each [indices, sequence] of int64.
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override;
  std::optional<size_t> size() const override;

 private:
  std::string bytes_;
  size_t sequence_;
};
