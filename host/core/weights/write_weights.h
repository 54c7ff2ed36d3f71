// Writes weights as Python's safetensors, transformers and Accelerate read them. Plain function,
// any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "weights/weight_source.h"

namespace coupler {

struct WrittenWeights {
  size_t files = 0;
  size_t tensors = 0;
  uint64_t bytes = 0;  // of the tensors
};

// Whether weights are written to that path as one file, not as files in a folder.
bool is_one_file(const std::string& target);

// Writes one file if the target ends in .safetensors, else to a folder: model.safetensors, or
// numbered files of at most max_shard_size bytes and their index. Existing files are replaced only
// once everything is on the disk. Throws Error(kInvalidArgument) if the target is part of the
// source or cannot be divided; Error(kIo) if something cannot be read or written, leaving no
// unfinished file.
WrittenWeights write_weights(const WeightSource& source, const std::string& target,
                             std::optional<uint64_t> max_shard_size);

}  // namespace coupler
