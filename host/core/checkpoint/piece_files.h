// PieceFiles: finds and reads the elements of a checkpoint's tensors, whichever rank wrote which
// part, and compares each chunk with its checksum. Single-threaded. Does not use LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "checkpoint/manifest.h"
#include "formats/safetensors_header.h"
#include "sharding/division.h"

namespace coupler::checkpoint {

class PieceFiles {
 public:
  struct Part {
    size_t file = 0;
    int64_t begin = 0, end = 0;        // elements, row-major, of what the division gives a rank
    uint64_t offset = 0;               // of the first in the file
    std::vector<int64_t> shape;        // of the entry
    sharding::Division division = {};  // of the tensor
  };
  struct Tensor {
    safetensors::DType dtype{};
    std::vector<Part> parts;  // by begin
  };

  // The safetensors files among `names`, which the manifest lists. Reads their headers only. Throws
  // Error(kIo) naming the file.
  PieceFiles(const std::string& folder, const Manifest& manifest,
             const std::vector<std::string>& names);

  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }

  // Reads elements begin to end of a tensor, whatever division its parts have. Throws Error(kIo) if
  // no file contains some of them or a file is damaged; the contents of `into` are undefined then.
  void read(const std::string& tensor, int64_t begin, int64_t end, void* into);

  // "__metadata__" of each file, in the order of `names`.
  const std::vector<safetensors::Metadata>& metadata() const { return metadata_; }

  const std::string& path(const Part& part) const { return files_[part.file].path; }

 private:
  struct File {
    std::string path;
    uint64_t bytes = 0;
    std::vector<uint64_t> sums;
    std::unique_ptr<CheckedFile> open;  // null: not now
  };

  void add_entries(size_t index);
  CheckedFile& opened(size_t index);

  std::vector<File> files_;
  size_t open_ = 0;  // of files_
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::vector<safetensors::Metadata> metadata_;
};

}  // namespace coupler::checkpoint
