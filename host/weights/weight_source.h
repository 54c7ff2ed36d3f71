// WeightSource: the weights of a model as they lie in somebody's files: what they are called, and
// each tensor's bytes in row-major order, one chunk after another. Plain data; reading is
// single-threaded, all tensors of a source together. Sees no LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/mapped_file.h"
#include "io/safetensors_header.h"

namespace coupler {

// What a chunk has at most: how much memory reading a tensor takes, whatever its size.
inline constexpr size_t kWeightChunk = size_t{4} << 20;

using ByteSink = std::function<void(const char* bytes, size_t size)>;

// A tensor's bytes as they lie in a mapped file.
struct FilePlace {
  std::shared_ptr<const MappedFile> file;  // null where they lie nowhere in one piece
  uint64_t begin = 0;
};

struct WeightTensor {
  std::string name;
  safetensors::DType dtype{};
  std::vector<int64_t> shape;
  // Gives the sink all bytes, in order. Throws Error(kIo) where a file is damaged, and what the
  // sink throws. Keeps what it reads from alive.
  std::function<void(const ByteSink&)> read;
  // For those who use the bytes where they are; they call `verify` before, which compares checksums
  // of the whole file, once, and throws Error(kIo) where it is damaged. Null where it has none.
  FilePlace place = {};
  std::function<void()> verify = {};

  uint64_t bytes() const { return safetensors::tensor_bytes(dtype, shape).value_or(0); }
};

struct WeightSource {
  std::vector<WeightTensor> tensors;                        // in the order of the files
  std::map<std::string, std::string, std::less<>> aliases;  // tied names, and the tensor of each
  std::vector<std::string> files;                           // in which the tensors lie
  std::string folder;  // which was named to find them; "" where a file was
};

// Throws Error(kIo) naming `path` for a name that is given twice, an alias of no tensor, and where
// there are no tensors at all.
void check_source(const WeightSource& source, const std::string& path);

}  // namespace coupler
