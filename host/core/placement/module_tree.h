// ModuleTree: a model as seen when planning device maps: modules, and the tensors registered in
// them, by dotted names. Plain data. To fill it, visit modules parents first, in the order of
// registration, and add a module's tensors before its children.
#pragma once

#include <coupler/device_map.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace coupler::placement {

// The dtypes of tensors by LibTorch's names, and their sizes. Pure functions, any thread.

struct TensorType {
  std::string_view name;  // "float16"
  uint32_t bits;          // as Accelerate counts: a bool is one bit
  uint32_t bytes;         // as stored in memory: one for a bool; int4 takes half of it
  bool converts;          // a dtype set for the whole model applies to it
};

// "float16" or "torch.float16". Throws Error(kInvalidArgument) naming `what`, the option or tensor
// that the name was given for, and suggesting the nearest name.
const TensorType& tensor_type(std::string_view name, const std::string& what);

enum class TensorKind : uint8_t { kParameter, kBuffer };

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

// The entry of a map by path that applies to a module or tensor: its own, or that of its nearest
// ancestor ("" is the whole model); the map's end if there is none.
template <class Map>
auto find_nearest(Map& map, std::string_view path) {
  for (;;) {
    const auto found = map.find(typename Map::key_type(path));
    if (found != map.end() || path.empty()) return found;
    const size_t dot = path.rfind('.');
    path = path.substr(0, dot == std::string_view::npos ? 0 : dot);
  }
}

// Whether a list such as no_split_module_classes names a class: with its namespace or without, with
// LibTorch's suffix Impl or without ("GPTJBlock" names my::GPTJBlockImpl).
bool names_class(const std::vector<std::string>& list, std::string_view type);

// The sizes of a tree's modules and tensors, by Accelerate's rules: a tensor with several names
// counts once, for the first; dtype applies to convertible types that are larger; special_dtypes
// apply to tensors by name; a bool is one bit. Immutable, any thread.

class TreeSizes {
 public:
  // Of the options only dtype and special_dtypes count. Throws Error(kInvalidArgument) for an
  // unknown dtype, and for a special dtype that matches no tensor.
  TreeSizes(const ModuleTree& tree, const DeviceMapOptions& options);

  // In bits; 0 for a second name.
  int64_t bits(TreeItem item) const {
    return item.is_module ? modules_[item.index] : tensors_[item.index];
  }
  int64_t total() const { return modules_.front(); }
  // In bytes as stored in memory, also for second names.
  uint64_t bytes(size_t tensor) const { return bytes_[tensor]; }
  // The first name of the same tensor, which may be `tensor` itself.
  size_t owner(size_t tensor) const { return owner_[tensor]; }
  // Modules and tensors that have a size, in the order in which Accelerate visits them.
  const std::vector<TreeItem>& order() const { return order_; }

 private:
  std::vector<int64_t> modules_, tensors_;
  std::vector<uint64_t> bytes_;
  std::vector<size_t> owner_;
  std::vector<TreeItem> order_;
};

// Which items of a tree stay together: layers, which are not divided, and the parts of the other
// modules. Pure functions, any thread.

// The parts into which Accelerate divides an item: its own parameters, each once, and its children;
// its own buffers are omitted. Empty for a layer.
std::vector<TreeItem> divided(const ModuleTree& tree, const std::vector<std::string>& no_split,
                              TreeItem item);

// The items with which Accelerate starts: the root's parameters, children and buffers.
std::vector<TreeItem> top_level(const ModuleTree& tree);

// The largest size of a layer among or below items, in bits, and the layers that have it. A layer
// is a tensor, a module without children, or one of a class in no_split.
struct LargestLayers {
  int64_t bits = 0;
  std::vector<TreeItem> layers;
};
LargestLayers largest_layers(const ModuleTree& tree, const TreeSizes& sizes,
                             const std::vector<std::string>& no_split,
                             const std::deque<TreeItem>& items);

// Parameters that share a tensor under several names: groups in the order of registration, each
// sorted by name.
std::vector<std::vector<size_t>> tied_groups(const ModuleTree& tree, const TreeSizes& sizes);

}  // namespace coupler::placement
