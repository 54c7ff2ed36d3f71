#include "placement/sequential.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "placement/module_tree.h"

namespace coupler::placement {

namespace {

// What an item is tied to outside itself.
struct Ties {
  bool outside = false;            // whether there is any such tie
  std::vector<TreeItem> partners;  // the waiting items that contain it, one per tied name
  int64_t bits = 0;                // of the partners without the tied tensors
};

// The items that a sequential placement still has to place, and their ties.
class PlacementQueue {
 public:
  PlacementQueue(const ModuleTree& tree, const TreeSizes& sizes,
                 const std::vector<std::string>& no_split)
      : tree_(tree), sizes_(sizes), no_split_(no_split), groups_(tied_groups(tree, sizes)) {
    put_first(top_level(tree));
  }

  const std::deque<TreeItem>& items() const { return items_; }
  bool empty() const { return items_.empty(); }

  TreeItem take_first() {
    const TreeItem item = items_.front();
    items_.pop_front();
    return item;
  }
  void put_first(TreeItem item) { items_.push_front(item); }
  void put_first(const std::vector<TreeItem>& parts) {
    items_.insert(items_.begin(), parts.begin(), parts.end());
  }
  void remove(TreeItem item) { std::erase(items_, item); }  // no effect if it is not there

  // Replaces an item by its parts. Returns false if it has none.
  bool divide(TreeItem item) {
    const auto place = std::find(items_.begin(), items_.end(), item);
    const auto parts = divided(tree_, no_split_, item);
    if (place == items_.end() || parts.empty()) return false;
    items_.insert(items_.erase(place), parts.begin(), parts.end());
    return true;
  }

  Ties ties_of(TreeItem item) const { return ties_of(item, items_); }

  // Removes and returns the first item, or part of one, that takes at most `limit` bits with all
  // its ties; its siblings stay in its place. Larger items are searched before the next item.
  std::optional<TreeItem> take_fitting(int64_t limit) {
    std::deque<TreeItem> among = items_;
    std::optional<TreeItem> found;
    while (limit >= 0 && !among.empty()) {
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

 private:
  Ties ties_of(TreeItem item, const std::deque<TreeItem>& among) const {
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

  const ModuleTree& tree_;
  const TreeSizes& sizes_;
  const std::vector<std::string>& no_split_;
  std::vector<std::vector<size_t>> groups_;
  std::deque<TreeItem> items_;
};

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Sizes are in bits; the cap keeps sums from overflowing.
int64_t limit_in_bits(uint64_t bytes) {
  constexpr uint64_t kMost = uint64_t{1} << 58;
  return static_cast<int64_t>(std::min(bytes, kMost) * 8);
}

class Sequential {
 public:
  Sequential(const ModuleTree& tree, const TreeSizes& sizes, const MaxMemory& memory,
             const SequentialOptions& options)
      : tree_(tree), sizes_(sizes), options_(options), waiting_(tree, sizes, options.no_split) {
    for (const auto& [device, bytes] : memory.devices())
      if (!device.is_disk()) devices_.push_back({device, limit_in_bits(bytes), false});
    // Layers that are not on an accelerator run on the first one and are copied there via the CPU.
    if (!devices_.empty()) devices_.front().reserves = true;
    if (!devices_.empty() && devices_.back().device.is_cpu()) devices_.back().reserves = true;
    devices_.push_back({MapDevice::disk(), kUnlimited, false});
    largest_ = largest_layers(tree, sizes, options.no_split, waiting_.items());
  }

  Placement run() {
    while (!waiting_.empty()) step(waiting_.take_first());
    return std::move(placement_);
  }

 private:
  struct Room {
    MapDevice device;
    int64_t limit;  // bits
    bool reserves;  // keeps room for the largest layer
    int64_t used = 0;
  };

  void step(TreeItem item) {
    forget_layers_of(item);
    Room& room = devices_[current_];
    const int64_t reserved = room.reserves ? largest_.bits : 0;
    const int64_t limit = room.limit - reserved;
    const int64_t size = sizes_.bits(item);
    const Ties ties = waiting_.ties_of(item);

    if (room.limit == kUnlimited || room.used + size + ties.bits <= limit) {
      room.used += size + ties.bits;
      place(item, room.device);
      for (const TreeItem partner : ties.partners) {
        waiting_.remove(partner);
        place(partner, room.device);
      }
      attempts_ = 0;
      return;
    }
    if (ties.outside && room.used + size <= limit && divide_partner(item, ties)) return;
    if (room.used + size >= limit && divide(item)) return;
    if (room.used == 0 && options_.fallback && find_smaller(item, size + ties.bits)) return;
    // The reserved room stays reserved; Accelerate counts it as used.
    room.used += reserved;
    ++current_;
    attempts_ = 0;
    waiting_.put_first(item);
  }

  void place(TreeItem item, MapDevice device) { placement_.emplace_back(item, device); }

  void forget_layers_of(TreeItem item) {
    auto& layers = largest_.layers;
    std::erase_if(layers, [&](TreeItem layer) { return tree_.holds(item, layer); });
    if (layers.empty()) find_largest();
  }
  void find_largest() {
    std::deque<TreeItem> modules;
    std::copy_if(waiting_.items().begin(), waiting_.items().end(), std::back_inserter(modules),
                 [](TreeItem item) { return item.is_module; });
    largest_ = largest_layers(tree_, sizes_, options_.no_split, modules);
  }

  // The item fits, but an item tied to it does not; a part of that may.
  bool divide_partner(TreeItem item, const Ties& ties) {
    for (const TreeItem partner : ties.partners) {
      if (!waiting_.divide(partner)) continue;
      waiting_.put_first(item);
      find_largest();
      return true;
    }
    return false;
  }

  bool divide(TreeItem item) {
    const auto parts = divided(tree_, options_.no_split, item);
    if (parts.empty()) return false;
    waiting_.put_first(parts);
    find_largest();
    return true;
  }

  // The device is empty and the next item does not fit: looks for another that does.
  bool find_smaller(TreeItem item, int64_t size) {
    // Accelerate could alternate forever between two tied items.
    if (++attempts_ > tree_.modules.size() + tree_.tensors.size()) return false;
    const int64_t limit = devices_[current_].limit - std::max(largest_.bits, size);
    const auto found = waiting_.take_fitting(limit);
    if (!found) return false;
    waiting_.put_first(item);
    waiting_.put_first(*found);
    return true;
  }

  const ModuleTree& tree_;
  const TreeSizes& sizes_;
  const SequentialOptions& options_;
  PlacementQueue waiting_;
  std::vector<Room> devices_;
  size_t current_ = 0;
  LargestLayers largest_;
  size_t attempts_ = 0;
  Placement placement_;
};

}  // namespace

Placement place_sequentially(const ModuleTree& tree, const TreeSizes& sizes,
                             const MaxMemory& memory, const SequentialOptions& options) {
  return Sequential(tree, sizes, memory, options).run();
}

namespace {

double bytes_in(int64_t bits) { return static_cast<double>(bits) / 8; }

// The size of the largest no-split class; a class is as large as its first module that has a size.
int64_t largest_whole(const ModuleTree& tree, const TreeSizes& sizes,
                      const std::vector<std::string>& no_split) {
  std::set<std::string_view> met;
  int64_t largest = 0;
  for (const TreeItem item : sizes.order()) {
    if (!item.is_module || item.index == 0) continue;
    const std::string& type = tree.modules[item.index].type;
    if (names_class(no_split, type) && met.insert(type).second)
      largest = std::max(largest, sizes.bits(item));
  }
  return largest;
}

// The mean size in bytes of the modules without a submodule that has a size.
double mean_leaf(const ModuleTree& tree, const TreeSizes& sizes) {
  std::set<size_t> sized, inner;
  for (const TreeItem item : sizes.order())
    if (item.is_module) sized.insert(item.index);
  for (const size_t module : sized)
    for (const size_t child : tree.modules[module].children)
      if (sized.contains(child)) inner.insert(module);
  int64_t sum = 0, count = 0;
  for (const size_t module : sized) {
    if (module == 0 || inner.contains(module)) continue;
    sum += sizes.bits({true, module});
    ++count;
  }
  return static_cast<double>(
      static_cast<int64_t>(bytes_in(sum) / static_cast<double>(std::max<int64_t>(count, 1))));
}

}  // namespace

MaxMemory balanced_memory(const ModuleTree& tree, const TreeSizes& sizes, const MaxMemory& memory,
                          const std::vector<std::string>& no_split, bool low_zero) {
  std::vector<MapDevice> accelerators;
  for (const auto& [device, bytes] : memory.devices())
    if (device.is_accelerator() && bytes > 0) accelerators.push_back(device);
  if (accelerators.empty()) return memory;
  if (accelerators.size() == 1) low_zero = false;

  // An equal share would leave each device slightly underfilled and a remainder at the end, so each
  // gets a little more: a block or an average module.
  const auto shares = static_cast<int64_t>(accelerators.size() - (low_zero ? 1 : 0));
  const double slack =
      std::max(bytes_in(largest_whole(tree, sizes, no_split)), mean_leaf(tree, sizes));
  const uint64_t share =
      static_cast<uint64_t>(sizes.total() / 8 / shares) + static_cast<uint64_t>(1.25 * slack);
  // Accelerate counts device numbers here, which matters if an accelerator may hold nothing, and
  // fails if a number is missing.
  std::vector<MapDevice> order = accelerators;
  for (size_t i = 0; i < order.size(); ++i) order[i] = MapDevice(static_cast<int>(i));
  if (std::any_of(order.begin(), order.end(), [&](MapDevice d) { return !memory.of(d); }))
    order = accelerators;

  MaxMemory result = memory;
  for (size_t i = 0; i + 1 < accelerators.size(); ++i) {
    const MapDevice device = accelerators[i];
    if (!low_zero || device != order.front())
      result.set(device, std::min(share, *memory.of(device)));
  }
  if (low_zero) {
    uint64_t others = 0;
    for (size_t i = 1; i < order.size(); ++i) others += *result.of(order[i]);
    const auto total = static_cast<uint64_t>(sizes.total() / 8);
    result.set(order.front(), std::min(total - std::min(total, others), *memory.of(order.front())));
  }
  return result;
}

}  // namespace coupler::placement
