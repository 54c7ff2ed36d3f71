#include "placement/sequential.h"

#include <algorithm>
#include <deque>
#include <limits>

#include "placement/waiting_items.h"

namespace coupler {
namespace {

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
    layers.erase(std::remove_if(layers.begin(), layers.end(),
                                [&](TreeItem layer) { return tree_.holds(item, layer); }),
                 layers.end());
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
  WaitingItems waiting_;
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

}  // namespace coupler
