// PieceReader: the tensors of a checkpoint's files, whoever wrote which part of them. Used by one
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/state_piece.h"
#include "io/checked_file.h"
#include "io/safetensors_header.h"

namespace coupler::checkpoint {

class PieceReader {
 public:
  // The safetensors files among `names`, which the manifest lists. Reads their headers only. Throws
  // Error(kIo) naming the file.
  PieceReader(const std::string& folder, const Manifest& manifest,
              const std::vector<std::string>& names);

  bool has(const std::string& tensor) const { return tensors_.count(tensor) != 0; }
  // Reads the elements of that tensor which the piece is, straight into its values where these are
  // contiguous. Throws Error(kInvalidArgument) for another dtype, Error(kIo) where elements are in
  // no file or a file is damaged.
  void read(const std::string& tensor, const StatePiece& piece);

  // Calls visit with the name and value of every tensor that is whole in a file, in order of names.
  void read_all(const std::function<void(const std::string&, const at::Tensor&)>& visit);

  // "__metadata__" of each file that has it, in the order of `names`.
  const std::vector<std::map<std::string, std::string, std::less<>>>& metadata() const {
    return metadata_;
  }

 private:
  struct Entry {
    size_t file = 0;
    int64_t begin = 0, end = 0;  // elements
    uint64_t offset = 0;         // of the first in the file
    safetensors::DType dtype{};
    std::vector<int64_t> shape;  // of the entry
  };

  void read_elements(const std::string& tensor, const StatePiece& piece, const at::Tensor& into);

  std::vector<std::unique_ptr<CheckedFile>> files_;
  std::map<std::string, std::vector<Entry>, std::less<>> tensors_;  // entries by begin
  std::vector<std::map<std::string, std::string, std::less<>>> metadata_;
};

}  // namespace coupler::checkpoint
