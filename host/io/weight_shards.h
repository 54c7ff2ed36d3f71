// Which tensors of a model go into which file, where one file would be too large: as
// huggingface_hub divides them (split_state_dict_into_shards_factory). Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/weight_index.h"

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
  uint64_t total_size = 0;  // what tensors share counts once
  std::vector<WeightFile> files;
};

// Fills one file after the other in the tensors' order. A tensor larger than `limit` gets a file of
// its own ahead of the one that is being filled; tensors that share memory go where the first of
// them goes. One file is model.safetensors, several are model-00001-of-0000N.safetensors, and no
// tensors make no file. Throws Error(kInvalidArgument) for a name given twice and for more than
// 2^64 - 1 bytes in all.
WeightFiles divide_weights(const std::vector<SizedTensor>& tensors, uint64_t limit);

// What the index of those files says.
WeightIndex index_of(const WeightFiles& weights);

}  // namespace coupler
