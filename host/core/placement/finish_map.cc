#include "placement/finish_map.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace coupler {
namespace {

// A module comes before its tensors, and these before its children.
std::pair<size_t, size_t> position(const ModuleTree& tree, TreeItem item) {
  return item.is_module ? std::pair(item.index, size_t{0})
                        : std::pair(tree.tensors[item.index].module, item.index + 1);
}

using Entries = std::vector<std::pair<std::string, MapDevice>>;
using Iterator = Entries::const_iterator;

// The length of a path up to its next dot at or after `from`.
size_t next_part(const std::string& path, size_t from) {
  return std::min(path.find('.', from), path.size());
}

// Entries [begin, end) are all entries below the module `above`, in order.
void append_clean(const std::string& above, Iterator begin, Iterator end, Entries& result) {
  const bool one =
      std::all_of(begin, end, [&](const auto& e) { return e.second == begin->second; });
  if (one && end - begin > 1) {
    result.emplace_back(above, begin->second);
    return;
  }
  const size_t from = above.empty() ? 0 : above.size() + 1;
  while (begin != end) {
    const std::string child = begin->first.substr(0, next_part(begin->first, from));
    const auto next = std::find_if_not(begin, end, [&](const auto& e) {
      return e.first.compare(0, next_part(e.first, from), child) == 0;
    });
    if (next - begin == 1)
      result.push_back(*begin);
    else
      append_clean(child, begin, next, result);
    begin = next;
  }
}

void cover(const ModuleTree& tree, const TreeSizes& sizes, DeviceMap& map) {
  const auto device_of = [&](size_t tensor) { return map.device_of(tree.tensors[tensor].name); };
  // The device of the first tensor in the module or its nearest ancestor that has one.
  const auto nearby = [&](size_t module) {
    for (size_t m = module + 1; m-- > 0;) {
      if (module >= tree.modules[m].end) continue;
      for (size_t t = 0; t < tree.tensors.size(); ++t)
        if (tree.holds({true, m}, t))
          if (const auto device = device_of(t)) return *device;
    }
    return MapDevice::disk();
  };
  for (size_t t = 0; t < tree.tensors.size(); ++t) {
    const TreeTensor& tensor = tree.tensors[t];
    const auto device = device_of(t);
    const size_t owner = sizes.owner(t);
    const auto wanted = owner == t ? std::nullopt : device_of(owner);
    if (!device) map.set(tensor.name, wanted ? *wanted : nearby(tensor.module));
    // Only parameters are tied; a buffer with two names may be stored twice.
    if (device && wanted && tensor.parameter() && *device != *wanted) map.set(tensor.name, *wanted);
  }
}

}  // namespace

DeviceMap finished_map(const ModuleTree& tree, const TreeSizes& sizes, const Placement& placement,
                       bool clean) {
  std::map<std::pair<size_t, size_t>, std::pair<TreeItem, MapDevice>> ordered;
  for (const auto& [item, device] : placement)
    ordered.insert_or_assign(position(tree, item), std::pair(item, device));
  Entries entries;
  for (const auto& [at, placed] : ordered)
    entries.emplace_back(tree.name(placed.first), placed.second);
  if (clean && !entries.empty()) {
    Entries cleaned;
    append_clean("", entries.begin(), entries.end(), cleaned);
    entries = std::move(cleaned);
  }
  DeviceMap map;
  for (const auto& [path, device] : entries) map.set(path, device);
  cover(tree, sizes, map);
  return map;
}

}  // namespace coupler
