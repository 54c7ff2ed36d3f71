// The functions and classes that a pickle may name, and what each stands for: a table; none is ever
// called. Immutable; any thread. Internal to the pickle reader.
#pragma once

#include <string_view>

#include "formats/pickle.h"

namespace coupler::pickle {

enum class Role : uint8_t {
  kOrderedDict,
  kTensor,              // torch._utils._rebuild_tensor_v2: the type is the storage's
  kTensorOfType,        // …_v3: the storage is untyped
  kParameter,           // a tensor and requires_grad
  kParameterWithState,  // … and attributes
  kSize,                // torch.Size, a tuple
  kDevice,              // torch.device, a string
  kSet,                 // a list of its members
  kStorageType,
  kElementType,
};

struct Global {
  std::string_view name;  // with its module: "torch.float32"
  Role role;
  const ElementType* type = nullptr;  // of kStorageType (null: untyped) and kElementType
};

// Null if it is not in the table.
const Global* find_global(std::string_view module, std::string_view name);

}  // namespace coupler::pickle
