// The weights in a file of torch.save's. Plain functions, any thread. Nothing in the file is
// executed: see io/torch_archive.h.
#pragma once

#include <string>

#include "weights/weight_source.h"

namespace coupler {

// The file's state dict: its root, or the dictionary below it that `key` names. Tensors that are
// the same bytes are one, under the first of their names. The checksum of all that the file holds
// is compared when the first tensor is read. Throws Error as TorchArchive does, and
// kInvalidArgument with the keys that would do where the state dict is elsewhere.
WeightSource open_torch(const std::string& path, const std::string& key);

// One tensor: the file's root, or what its root has under `key`.
WeightSource open_torch_tensor(const std::string& path, const std::string& key,
                               const std::string& name);

}  // namespace coupler
