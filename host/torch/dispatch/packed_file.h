// A file of packed weights in an offload folder: quantized once, and used in place by every later
// run with the same weights and options. Plain functions, one thread; several processes may write
// the same file, since each replaces it as a whole.
//
// quantized-HASH.safetensors contains each weight's packed bytes under its name;
// quantized-HASH.json, written last, contains their fingerprint and the errors. HASH is of the
// fingerprint: the options, and each weight's shape and source file with its size and modification
// time. A changed checkpoint gets its own files.
#pragma once

#include <coupler/quantize_options.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/placed_tensor.h"
#include "weights/weight_source.h"

namespace coupler {

struct PackedFile {
  std::shared_ptr<const WeightSource> source;  // one tensor of bytes per weight
  std::map<std::string, QuantizedLayer> layers;
};

// Everything that packing these weights depends on; empty if one of them is not in a file, so that
// it could not be recognized later.
std::string fingerprint_of(const std::vector<const PlacedTensor*>& weights);

// The file of that fingerprint; nullopt if it does not exist or is damaged, which is logged.
std::optional<PackedFile> open_packed_file(const std::string& folder,
                                           const std::string& fingerprint,
                                           const std::vector<const PlacedTensor*>& weights);

// Packs one weight after the other, so that only one is in memory at a time, and returns when all
// are on disk. Throws Error(kIo), and what pack throws.
using PackOne = std::function<at::Tensor(const PlacedTensor& weight, QuantizedLayer& layer)>;
PackedFile write_packed_file(const std::string& folder, const std::string& fingerprint,
                             const std::vector<const PlacedTensor*>& weights, const PackOne& pack);

}  // namespace coupler
