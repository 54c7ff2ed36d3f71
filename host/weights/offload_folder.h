// The folder in which Accelerate keeps weights that stay on a disk, read and written: NAME.dat with
// a tensor's bytes in row-major order, and index.json, which says what each of them is, or in which
// safetensors file the tensor lies instead:
//
//   {"h.0.weight": {"dtype": "float32", "shape": [4, 4]},
//    "h.1.weight": {"safetensors_file": "/models/model.safetensors", "weight_name": "h.1.weight",
//                   "dtype": "float16"}}
//
// (accelerate 1.15, utils/offload.py.) Sees no LibTorch; single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weights/weight_source.h"

namespace coupler {

inline constexpr const char* kOffloadIndex = "index.json";

// Whether a folder has such an index, not an index of files of weights: told by its values, which
// are objects. False where there is no index.json.
bool is_offload_folder(const std::string& folder);

// Throws Error(kIo) naming the folder and the tensor: no index (the folder is half written), a file
// that is missing or has not as many bytes as its tensor, a type that is not known.
WeightSource open_offload_folder(const std::string& folder);

// Adds weights to such a folder, which is made where it is not there. Meanwhile it has no index, so
// that nobody takes what is half written for a model.
class OffloadFolderWriter {
 public:
  // Throws Error(kIo) where the folder cannot be made or written to, or its index is none.
  explicit OffloadFolderWriter(std::string folder);
  // Leaves a folder without an index unless finish() has returned.
  ~OffloadFolderWriter() = default;
  OffloadFolderWriter(const OffloadFolderWriter&) = delete;
  OffloadFolderWriter& operator=(const OffloadFolderWriter&) = delete;

  // Writes the bytes that `read` gives. Throws Error(kIo) naming the tensor's file: a full disk.
  void add(const WeightTensor& tensor);
  // The tensor stays where it is: in a safetensors file, under a name of its own there.
  void refer(const std::string& name, const std::string& safetensors_file,
             const std::string& weight_name, safetensors::DType dtype);
  // Returns when the index is there and all is on the disk.
  void finish();

 private:
  std::string folder_;
  std::map<std::string, std::string, std::less<>> entries_;  // JSON, by name
};

}  // namespace coupler
