// The weights in a file written by torch.save. Plain functions, any thread. Nothing in the file is
// executed: see formats/torch_archive.h.
#pragma once

#include <string>

#include "weights/weight_source.h"

namespace coupler {

// The file's state dict: its root, or the dictionary below it that `key` names. Tensors with the
// same bytes are merged under the first of their names. Reading the first tensor verifies the whole
// file's checksums. Throws Error as TorchArchive does, and kInvalidArgument with the possible keys
// if the state dict is elsewhere.
WeightSource open_torch(const std::string& path, const std::string& key);

// One tensor: the file's root, or the root's value for `key`.
WeightSource open_torch_tensor(const std::string& path, const std::string& key,
                               const std::string& name);

}  // namespace coupler
