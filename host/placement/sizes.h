// What the modules and tensors of a tree take, by Accelerate's rules: a tensor under several names
// counts once, for the first; a dtype asked for lowers what is larger and converts; special_dtypes
// hold for tensors by name; a bool is one bit. Immutable once made, any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "placement/module_tree.h"

namespace coupler {

// Both empty: tensors stay what they are.
struct SizeRules {
  std::string dtype;
  std::map<std::string, std::string> special_dtypes;  // by the dotted name of a tensor
};

class TreeSizes {
 public:
  // Throws Error(kInvalidArgument) for an unknown type, and for a special one of no tensor.
  TreeSizes(const ModuleTree& tree, const SizeRules& rules);

  // In bits; 0 for a second name.
  int64_t bits(TreeItem item) const {
    return item.is_module ? modules_[item.index] : tensors_[item.index];
  }
  int64_t total() const { return modules_.front(); }
  // In bytes as they lie in memory, second names too.
  uint64_t bytes(size_t tensor) const { return bytes_[tensor]; }
  // The first tensor that is the same: itself, or the one that this is another name of.
  size_t owner(size_t tensor) const { return owner_[tensor]; }
  // Modules and tensors that have a size, in the order in which Accelerate meets them.
  const std::vector<TreeItem>& order() const { return order_; }

 private:
  std::vector<int64_t> modules_, tensors_;
  std::vector<uint64_t> bytes_;
  std::vector<size_t> owner_;
  std::vector<TreeItem> order_;
};

}  // namespace coupler
