// model.safetensors.index.json: which of a model's files holds which tensor; also the older index,
// which is only that map. Pure functions, any thread. Work and memory grow linearly with the text
// (n log n for names), and its size is capped, since files are untrusted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace coupler::formats {

inline constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;
inline constexpr size_t kMaxIndexDepth = 16;

struct WeightIndex {
  // Bytes of all tensors; shared memory counts once. None if the file has no valid value.
  std::optional<uint64_t> total_size;
  std::map<std::string, std::string, std::less<>> weight_map;  // tensor to file
};

// Ignores keys other than these two. Throws Error(kIo) naming `file`, the tensor at fault if any,
// and the violated rule; files must be plain names, in the folder of the index.
WeightIndex parse_weight_index(std::string_view text, const std::string& file);

// As transformers and accelerate write it: sorted keys, two spaces per level, non-ASCII characters
// escaped, a final newline. Throws Error(kInvalidArgument) naming `file` for what
// parse_weight_index would reject.
std::string format_weight_index(const WeightIndex& index, const std::string& file);

// Divides a model's tensors, each given once, among files if one file would be too large, as
// huggingface_hub does (split_state_dict_into_shards_factory). Pure functions, any thread.

struct SizedTensor {
  std::string name;
  uint64_t bytes = 0;
};

struct WeightFile {
  std::string name;
  std::vector<std::string> tensors;
};

struct WeightFiles {
  uint64_t total_size = 0;
  std::vector<WeightFile> files;
};

// Fills one file after the other in the tensors' order. A tensor larger than `limit` gets its own
// file before the one being filled. A single file is model.safetensors, several are
// model-00001-of-0000N.safetensors; without tensors there are no files. Throws
// Error(kInvalidArgument) for a duplicate name and for more than 2^64 - 1 bytes in total.
WeightFiles divide_weights(const std::vector<SizedTensor>& tensors, uint64_t limit);

// The index of those files.
WeightIndex index_of(const WeightFiles& weights);

}  // namespace coupler::formats
