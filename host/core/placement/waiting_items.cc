#include "placement/waiting_items.h"

#include <algorithm>

namespace coupler {

WaitingItems::WaitingItems(const ModuleTree& tree, const TreeSizes& sizes,
                           const std::vector<std::string>& no_split)
    : tree_(tree), sizes_(sizes), no_split_(no_split), groups_(tied_groups(tree, sizes)) {
  put_first(top_level(tree));
}

TreeItem WaitingItems::take_first() {
  const TreeItem item = items_.front();
  items_.pop_front();
  return item;
}

void WaitingItems::put_first(const std::vector<TreeItem>& parts) {
  items_.insert(items_.begin(), parts.begin(), parts.end());
}

void WaitingItems::remove(TreeItem item) {
  const auto place = std::find(items_.begin(), items_.end(), item);
  if (place != items_.end()) items_.erase(place);
}

bool WaitingItems::divide(TreeItem item) {
  const auto place = std::find(items_.begin(), items_.end(), item);
  const auto parts = divided(tree_, no_split_, item);
  if (place == items_.end() || parts.empty()) return false;
  items_.insert(items_.erase(place), parts.begin(), parts.end());
  return true;
}

Ties WaitingItems::ties_of(TreeItem item, const std::deque<TreeItem>& among) const {
  Ties ties;
  for (const auto& group : groups_) {
    const auto inside = [&](size_t tensor) { return tree_.holds(item, tensor); };
    if (std::none_of(group.begin(), group.end(), inside)) continue;
    for (const size_t tensor : group) {
      if (inside(tensor)) continue;
      ties.outside = true;
      const auto partner = std::find_if(among.begin(), among.end(), [&](TreeItem waiting) {
        return tree_.holds(waiting, tensor);
      });
      if (partner == among.end()) continue;  // has a device already
      ties.partners.push_back(*partner);
      ties.bits += sizes_.bits(*partner) - sizes_.bits({false, tensor});
    }
  }
  return ties;
}

std::optional<TreeItem> WaitingItems::take_fitting(int64_t limit) {
  std::deque<TreeItem> among = items_;
  std::optional<TreeItem> found;
  while (limit >= 0 && !found && !among.empty()) {
    const TreeItem item = among.front();
    among.pop_front();
    if (sizes_.bits(item) + ties_of(item, among).bits <= limit) {
      found = item;
      break;
    }
    const auto parts = divided(tree_, no_split_, item);
    among.insert(among.begin(), parts.begin(), parts.end());
  }
  if (!found) return std::nullopt;
  // Divides the waiting items above it down to its siblings.
  while (std::find(items_.begin(), items_.end(), *found) == items_.end()) {
    const auto above = std::find_if(items_.begin(), items_.end(),
                                    [&](TreeItem item) { return tree_.holds(item, *found); });
    if (above == items_.end() || !divide(*above)) return std::nullopt;
  }
  remove(*found);
  return found;
}

}  // namespace coupler
