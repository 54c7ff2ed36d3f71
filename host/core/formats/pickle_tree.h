// Checks that are possible only after a pickle has been read to its end: no container holds itself,
// a walk from the root is neither deep nor long, and no dictionary has a key twice. Internal to the
// pickle reader.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/pickle.h"

namespace coupler::pickle {

// The functions and classes that a pickle may name, and what each stands for: a table; none is ever
// called. Immutable; any thread. Internal to the pickle reader.

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

class TreeCheck {
 public:
  explicit TreeCheck(const std::string& file) : file_(file) {}

  // Without recursion; visits each value once, however often it is referenced. Throws Error(kIo).
  void check(Value* root);

 private:
  struct Visit {
    Value* value;
    size_t next = 0;  // of its items
  };

  [[noreturn]] void fail(const std::string& rule) const;
  void enter(Value* value);
  void leave(Value* value);
  void check_keys(const Value& dictionary);

  const std::string& file_;
  std::vector<Visit> path_;
  std::vector<const Value*> keys_;
};

}  // namespace coupler::pickle
