// A file of packed weights in an offload folder: quantised once, and used where it lies by every
// later run that asks for the same. Plain functions of one thread; several processes may write the
// same one, since each replaces it as a whole.
//
// quantized-HASH.safetensors holds each weight's packed bytes under its name; quantized-HASH.json,
// written last, what they were made from and the errors. HASH is of what they were made from: the
// options, and of each weight its shape and the file that it is read from, with its size and time
// of change. A checkpoint that changes gets files of its own.
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
  std::shared_ptr<const WeightSource> source;  // a tensor of bytes for each weight
  std::map<std::string, QuantizedLayer> layers;
};

// What packing these weights depends on; empty where one of them is in no file that could be told
// to be the same again.
std::string fingerprint_of(const std::vector<const PlacedTensor*>& weights);

// The file of that fingerprint; none where there is none yet, or a damaged one, which is logged.
std::optional<PackedFile> open_packed_file(const std::string& folder,
                                           const std::string& fingerprint,
                                           const std::vector<const PlacedTensor*>& weights);

// Packs one weight after the other, so that only one is in memory at a time, and returns when all
// is on the disk. Throws Error(kIo), and what pack throws.
using PackOne = std::function<at::Tensor(const PlacedTensor& weight, QuantizedLayer& layer)>;
PackedFile write_packed_file(const std::string& folder, const std::string& fingerprint,
                             const std::vector<const PlacedTensor*>& weights, const PackOne& pack);

}  // namespace coupler
