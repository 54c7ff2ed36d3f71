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

namespace coupler {

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

}  // namespace coupler
