// The items that a sequential placement still has to place, and their ties to one another. Belongs
// to one thread.
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

// What an item is tied to outside of itself.
struct Ties {
  bool outside = false;            // there is something
  std::vector<TreeItem> partners;  // the waiting items that hold it, one for each tied name
  int64_t bits = 0;                // of the partners but for what is tied
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
  void remove(TreeItem item);  // if it is there

  // Replaces an item by its parts. False where it has none.
  bool divide(TreeItem item);

  Ties ties_of(TreeItem item) const { return ties_of(item, items_); }
  // The first item, or part of one, that takes no more with all that it is tied to; its siblings
  // stay in its place. Larger ones are looked into before the next is looked at.
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
