// ModuleTree: a model as seen when planning device maps: modules, and the tensors registered in
// them, by dotted names. Plain data. To fill it, visit modules parents first, in the order of
// registration, and add a module's tensors before its children.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "placement/tensor_type.h"

namespace coupler {

enum class TensorKind : uint8_t {
  kParameter,
  kBuffer,
  kTransientBuffer,  // not in the state dict
};

struct TreeTensor {
  std::string name;  // dotted, from the root
  uint64_t elements = 0;
  const TensorType* type = nullptr;  // of tensor_type()
  TensorKind kind = TensorKind::kParameter;
  uint64_t storage = 0;  // tensors with the same value are one tensor under several names
  size_t module = 0;

  bool parameter() const { return kind == TensorKind::kParameter; }
};

struct TreeModule {
  std::string name;     // dotted; "" is the root
  std::string type;     // the class
  uint64_t object = 0;  // equal for one module registered twice
  size_t parent = 0;    // the root's is itself
  size_t end = 0;       // the descendants are the modules before this index
  std::vector<size_t> children, tensors;
};

// A module or a tensor of a tree.
struct TreeItem {
  bool is_module = true;
  size_t index = 0;

  friend bool operator==(const TreeItem&, const TreeItem&) = default;
};

struct ModuleTree {
  std::vector<TreeModule> modules;  // the first is the root
  std::vector<TreeTensor> tensors;

  explicit ModuleTree(std::string root_type = "Module");

  // Adds a module below parent, which is the module added last or one above it. Returns its index.
  size_t add_module(size_t parent, const std::string& name, std::string type, uint64_t object);
  // Fills in the dotted name and the module.
  void add_tensor(size_t module, TreeTensor tensor);

  const std::string& name(TreeItem item) const;
  // Whether the item is the tensor or a module above it.
  bool holds(TreeItem item, size_t tensor) const;
  // Whether a is b or a module above it.
  bool holds(TreeItem a, TreeItem b) const;
};

// Whether a list such as no_split_module_classes names a class: with its namespace or without, with
// LibTorch's suffix Impl or without ("GPTJBlock" names my::GPTJBlockImpl).
bool names_class(const std::vector<std::string>& list, std::string_view type);

}  // namespace coupler
