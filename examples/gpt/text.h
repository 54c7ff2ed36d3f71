// Text as a map-style dataset of byte-level samples: sample i is `sequence` bytes and, as the
// target, the same bytes one further on. Windows lie end to end. Read-only once made.
#pragma once

#include <torch/data/datasets/base.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

class Text : public torch::data::datasets::BatchDataset<Text, torch::data::Example<>> {
 public:
  // Throws coupler::Error where the file cannot be read or is shorter than one sample.
  Text(const std::string& path, int64_t sequence);

  // Data and target: [indices, sequence] of int64.
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override;
  std::optional<size_t> size() const override;

 private:
  std::string bytes_;
  size_t sequence_;
};
