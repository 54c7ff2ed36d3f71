// WeightSource: the weights of a model in files of any format: their names, and each tensor's bytes
// in row-major order, chunk by chunk. Plain data; one thread at a time may read any tensors of a
// source. Does not depend on LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "formats/safetensors_header.h"

namespace coupler::weights {

// The largest chunk: the memory that reading a tensor takes, whatever its size.
inline constexpr size_t kWeightChunk = size_t{4} << 20;

using ByteSink = std::function<void(const char* bytes, size_t size)>;

// The position of a tensor's bytes in a mapped file.
struct FilePlace {
  std::shared_ptr<const MappedFile> file;  // null if they are not contiguous in a file
  uint64_t begin = 0;
};

struct WeightTensor {
  std::string name;
  safetensors::DType dtype{};
  std::vector<int64_t> shape;
  // Passes all bytes to the sink, in order. Throws Error(kIo) if a file is damaged, and what the
  // sink throws. Keeps the files it reads alive.
  std::function<void(const ByteSink&)> read;
  // For callers that use the bytes in place. They call `verify` first, which compares the whole
  // file's checksums once, and throws Error(kIo) if it is damaged. `verify` is null without
  // checksums.
  FilePlace place = {};
  std::function<void()> verify = {};
  // Passes bytes [begin, end) to the sink, reading no others. Null if only `read` can find them.
  std::function<void(uint64_t begin, uint64_t end, const ByteSink&)> read_range = {};

  uint64_t bytes() const { return safetensors::tensor_bytes(dtype, shape).value_or(0); }
};

// Passes bytes in memory to the sink, in chunks.
void send_chunks(const uint8_t* bytes, uint64_t size, const ByteSink& sink);

// Passes bytes [begin, end) of a tensor to the sink, in order, in chunks of at most kWeightChunk
// that are multiples of the element's size if begin and end are. Reads other bytes only if the file
// does not have the tensor's bytes in order. Throws as WeightTensor::read.
void read_range(const WeightTensor& tensor, uint64_t begin, uint64_t end, const ByteSink& sink);

// A tensor whose bytes are those of a mapped file from `begin` on.
WeightTensor mapped_weight(const std::string& name, safetensors::DType dtype,
                           const std::vector<int64_t>& shape,
                           const std::shared_ptr<const MappedFile>& file, uint64_t begin);

struct WeightSource {
  std::vector<WeightTensor> tensors;                        // in the order of the files
  std::map<std::string, std::string, std::less<>> aliases;  // tied names, and the tensor of each
  std::vector<std::string> files;                           // that contain the tensors
  std::string folder;  // the folder given to find them; "" if a file was given
};

// Throws Error(kIo) naming `path` for a duplicate name, an alias that refers to no tensor, and a
// source without tensors.
void check_source(const WeightSource& source, const std::string& path);

}  // namespace coupler::weights
