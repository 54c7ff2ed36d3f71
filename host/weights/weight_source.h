// WeightSource: the weights of a model as they lie in somebody's files: what they are called, and
// each tensor's bytes in row-major order, one chunk after another. Plain data; reading is
// single-threaded, all tensors of a source together. Sees no LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/safetensors_header.h"

namespace coupler {

// What a chunk has at most: how much memory reading a tensor takes, whatever its size.
inline constexpr size_t kWeightChunk = size_t{4} << 20;

using ByteSink = std::function<void(const char* bytes, size_t size)>;

struct WeightTensor {
  std::string name;
  safetensors::DType dtype{};
  std::vector<int64_t> shape;
  // Gives the sink all bytes, in order. Throws Error(kIo) where a file is damaged, and what the
  // sink throws. Keeps what it reads from alive.
  std::function<void(const ByteSink&)> read;

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
