// The dtypes of tensors by LibTorch's names, and their sizes. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace coupler {

struct TensorType {
  std::string_view name;  // "float16"
  uint32_t bits;          // as Accelerate counts: a bool is one bit
  uint32_t bytes;         // as stored in memory: one for a bool; int4 takes half of it
  bool converts;          // a dtype set for the whole model applies to it
};

// "float16" or "torch.float16". Throws Error(kInvalidArgument) naming `what`, the option or tensor
// that the name was given for, and suggesting the nearest name.
const TensorType& tensor_type(std::string_view name, const std::string& what);

}  // namespace coupler
