#include "placement/balanced.h"

#include <algorithm>
#include <set>

namespace coupler {
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
  for (const TreeItem item : sizes.order()) {
    if (!item.is_module) continue;
    sized.insert(item.index);
  }
  for (const size_t module : sized)
    for (const size_t child : tree.modules[module].children)
      if (sized.count(child) != 0) inner.insert(module);
  int64_t sum = 0, count = 0;
  for (const size_t module : sized) {
    if (module == 0 || inner.count(module) != 0) continue;
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

}  // namespace coupler
