// Divides a model's tensors among files if one file would be too large, as huggingface_hub does
// (split_state_dict_into_shards_factory). Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/weight_index.h"

namespace coupler {

struct SizedTensor {
  std::string name;
  uint64_t bytes = 0;
  std::optional<uint64_t> storage;  // tensors with the same number share memory
};

struct WeightFile {
  std::string name;
  std::vector<std::string> tensors;
};

struct WeightFiles {
  uint64_t total_size = 0;  // shared memory counts once
  std::vector<WeightFile> files;
};

// Fills one file after the other in the tensors' order. A tensor larger than `limit` gets its own
// file before the one being filled; tensors that share memory go into the file of the first of
// them. A single file is model.safetensors, several are model-00001-of-0000N.safetensors; without
// tensors there are no files. Throws Error(kInvalidArgument) for a duplicate name and for more than
// 2^64 - 1 bytes in total.
WeightFiles divide_weights(const std::vector<SizedTensor>& tensors, uint64_t limit);

// The index of those files.
WeightIndex index_of(const WeightFiles& weights);

}  // namespace coupler
