// The weights in a file written by torch.save. Plain functions, any thread. Nothing in the file is
// executed: see formats/torch_archive.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weights/weight_source.h"

namespace coupler::weights {

// Reads tensors with any strides in row-major order. Pure functions, any thread.

// Whether the elements are already adjacent in that order.
bool is_row_major(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);

// Passes the elements, of `bytes` each, to the sink in chunks; data already in order is not copied.
// Strides are in elements, none negative, one per dimension; `first` is the first element.
void read_row_major(const uint8_t* first, const std::vector<int64_t>& shape,
                    const std::vector<int64_t>& strides, uint64_t bytes, const ByteSink& sink);

// The file's state dict: its root, or the dictionary below it that `key` names. Tensors with the
// same bytes are merged under the first of their names. Reading the first tensor verifies the whole
// file's checksums. Throws Error as TorchArchive does, and kInvalidArgument with the possible keys
// if the state dict is elsewhere.
WeightSource open_torch(const std::string& path, const std::string& key);

// One tensor: the file's root, or the root's value for `key`.
WeightSource open_torch_tensor(const std::string& path, const std::string& key,
                               const std::string& name);

}  // namespace coupler::weights
