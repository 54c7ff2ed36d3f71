// model.safetensors.index.json: which of a model's files holds which tensor; and the older index,
// which is that map alone. Pure functions, any thread; work and memory grow linearly with the text
// (n log n for names), and the text is capped, since files come from strangers.
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
  // Of all tensors' bytes, those of shared memory once. None where the file gives no whole number.
  std::optional<uint64_t> total_size;
  std::map<std::string, std::string, std::less<>> weight_map;  // tensor to file
};

// Other keys than these two are passed over. Throws Error(kIo) naming `file`, the tensor where one
// is at fault, and the rule that was broken; files are plain names, in the folder of the index.
WeightIndex parse_weight_index(std::string_view text, const std::string& file);

// As transformers and accelerate write it: keys sorted, two spaces a level, all but ASCII escaped,
// a line's end at the end. Throws Error(kInvalidArgument) for what parse_weight_index would refuse,
// naming `file`.
std::string format_weight_index(const WeightIndex& index, const std::string& file);

}  // namespace coupler
