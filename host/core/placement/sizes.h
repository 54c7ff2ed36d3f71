// The sizes of a tree's modules and tensors, by Accelerate's rules: a tensor with several names
// counts once, for the first; dtype applies to convertible types that are larger; special_dtypes
// apply to tensors by name; a bool is one bit. Immutable, any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "placement/module_tree.h"

namespace coupler {

// Both empty: tensors keep their dtypes.
struct SizeRules {
  std::string dtype;
  std::map<std::string, std::string> special_dtypes;  // by the dotted name of a tensor
};

class TreeSizes {
 public:
  // Throws Error(kInvalidArgument) for an unknown dtype, and for a special dtype that matches no
  // tensor.
  TreeSizes(const ModuleTree& tree, const SizeRules& rules);

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

}  // namespace coupler
