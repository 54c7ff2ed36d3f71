// WaitingItems: the items that a sequential placement still has to place, and their ties. Used by
// one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "placement/layers.h"
#include "placement/module_tree.h"
#include "placement/sizes.h"

namespace coupler {

// What an item is tied to outside itself.
struct Ties {
  bool outside = false;            // whether there is any such tie
  std::vector<TreeItem> partners;  // the waiting items that contain it, one per tied name
  int64_t bits = 0;                // of the partners without the tied tensors
};

class WaitingItems {
 public:
  WaitingItems(const ModuleTree& tree, const TreeSizes& sizes,
               const std::vector<std::string>& no_split);

  const std::deque<TreeItem>& items() const { return items_; }
  bool empty() const { return items_.empty(); }
  TreeItem take_first();
  void put_first(TreeItem item) { items_.push_front(item); }
  void put_first(const std::vector<TreeItem>& parts);
  void remove(TreeItem item);  // no effect if it is not there

  // Replaces an item by its parts. Returns false if it has none.
  bool divide(TreeItem item);

  Ties ties_of(TreeItem item) const { return ties_of(item, items_); }
  // Removes and returns the first item, or part of one, that takes at most `limit` bits with all
  // its ties; its siblings stay in its place. Larger items are searched before the next item.
  std::optional<TreeItem> take_fitting(int64_t limit);

 private:
  Ties ties_of(TreeItem item, const std::deque<TreeItem>& among) const;

  const ModuleTree& tree_;
  const TreeSizes& sizes_;
  const std::vector<std::string>& no_split_;
  std::vector<std::vector<size_t>> groups_;
  std::deque<TreeItem> items_;
};

}  // namespace coupler
