// Reads and writes the folder in which Accelerate keeps weights on disk: NAME.dat with a tensor's
// bytes in row-major order, and index.json, which describes each tensor or names the safetensors
// file that has it instead:
//
//   {"h.0.weight": {"dtype": "float32", "shape": [4, 4]},
//    "h.1.weight": {"safetensors_file": "/models/model.safetensors", "weight_name": "h.1.weight",
//                   "dtype": "float16"}}
//
// (accelerate 1.15, utils/offload.py.) Does not depend on LibTorch; single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weights/weight_source.h"

namespace coupler::weights {

inline constexpr const char* kOffloadIndex = "index.json";

// Whether a folder has such an index, whose values are objects, and not an index of weight files.
// False if there is no index.json.
bool is_offload_folder(const std::string& folder);

// Throws Error(kIo) naming the folder and the tensor: no index (the folder is incomplete), a file
// that is missing or has another size than its tensor, an unknown type.
WeightSource open_offload_folder(const std::string& folder);

// Adds weights to such a folder, which is created if missing. Meanwhile it has no index, so that an
// incomplete folder is not mistaken for a model.
class OffloadFolderWriter {
 public:
  // Throws Error(kIo) if the folder cannot be created or written to, Error(kInvalidArgument) if its
  // index.json is not such an index.
  explicit OffloadFolderWriter(std::string folder);
  // Leaves the folder without an index unless finish() has returned.
  ~OffloadFolderWriter() = default;
  OffloadFolderWriter(const OffloadFolderWriter&) = delete;
  OffloadFolderWriter& operator=(const OffloadFolderWriter&) = delete;

  // Writes the bytes that `read` gives. Throws Error(kIo) naming the tensor's file: a full disk.
  void add(const WeightTensor& tensor);
  // Refers to a tensor that stays in a safetensors file, under its own name there.
  void refer(const std::string& name, const std::string& safetensors_file,
             const std::string& weight_name, safetensors::DType dtype);
  // Writes the index, and returns when everything is on the disk.
  void finish();

 private:
  std::string folder_;
  std::map<std::string, std::string, std::less<>> entries_;  // JSON, by name
};

}  // namespace coupler::weights
