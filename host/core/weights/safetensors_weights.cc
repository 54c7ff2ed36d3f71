#include "weights/safetensors_weights.h"

#include <algorithm>

#include "base/mapped_file.h"

namespace coupler {

WeightSource open_safetensors(const std::string& path) {
  const auto file = MappedFile::open(path);
  const auto header = safetensors::parse_header(file->data(), file->size(), path);
  WeightSource source{.tensors = {}, .aliases = {}, .files = {path}, .folder = {}};
  for (const safetensors::TensorInfo& info : header.tensors) {
    const uint64_t begin = header.data_offset + info.begin;
    const uint64_t size = info.end - info.begin;
    source.tensors.push_back({info.name,
                              info.dtype,
                              info.shape,
                              [file, begin, size](const ByteSink& sink) {
                                const char* const bytes =
                                    reinterpret_cast<const char*>(file->data()) + begin;
                                for (uint64_t at = 0; at < size; at += kWeightChunk)
                                  sink(bytes + at, std::min<uint64_t>(kWeightChunk, size - at));
                              },
                              {file, begin}});
  }
  for (const auto& [key, value] : header.metadata) {
    if (key != "format" && header.index.count(value) != 0 && header.index.count(key) == 0)
      source.aliases.emplace(key, value);
  }
  return source;
}

}  // namespace coupler
