// The element types of tensors by LibTorch's names, and what they take. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace coupler {

struct TensorType {
  std::string_view name;  // "float16"
  uint32_t bits;          // as Accelerate counts: a bool is one
  uint32_t bytes;         // as it lies in memory: a bool is eight bits, int4 half a byte
  bool converts;          // a dtype asked for the whole model applies to it
};

// "float16" or "torch.float16". Throws Error(kInvalidArgument) naming `what`, the option or tensor
// that the name was given for, and the type with the nearest name.
const TensorType& tensor_type(std::string_view name, const std::string& what);

}  // namespace coupler
