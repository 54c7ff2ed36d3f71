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

// Whether weights are written to that path as one file, not as files of a folder.
bool is_one_file(const std::string& target);

// To one file where the target is called .safetensors, else to a folder: model.safetensors, or
// numbered files of at most so many bytes and their index. What a file or folder of that name had
// before is there until all is on the disk. Throws Error(kInvalidArgument) where the target is part
// of the source, or cannot be divided; Error(kIo) where something cannot be read or written: no
// unfinished file is left then.
WrittenWeights write_weights(const WeightSource& source, const std::string& target,
                             std::optional<uint64_t> max_shard_size);

}  // namespace coupler
