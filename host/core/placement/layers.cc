#include "placement/layers.h"

#include <algorithm>
#include <map>
#include <set>

namespace coupler::placement {
namespace {

std::vector<TreeItem> own_tensors(const ModuleTree& tree, size_t module, bool parameters) {
  std::vector<TreeItem> result;
  std::set<uint64_t> met;
  for (const size_t t : tree.modules[module].tensors)
    if (tree.tensors[t].parameter() == parameters && met.insert(tree.tensors[t].storage).second)
      result.push_back({false, t});
  return result;
}

void append(std::vector<TreeItem>& to, const std::vector<TreeItem>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

std::vector<TreeItem> distinct_children(const ModuleTree& tree, size_t module) {
  std::vector<TreeItem> result;
  std::set<uint64_t> met;
  for (const size_t child : tree.modules[module].children)
    if (met.insert(tree.modules[child].object).second) result.push_back({true, child});
  return result;
}

std::vector<TreeItem> divided(const ModuleTree& tree, const std::vector<std::string>& no_split,
                              TreeItem item) {
  if (!item.is_module || names_class(no_split, tree.modules[item.index].type)) return {};
  const std::vector<TreeItem> children = distinct_children(tree, item.index);
  if (children.empty()) return {};
  std::vector<TreeItem> result = own_tensors(tree, item.index, true);
  append(result, children);
  return result;
}

std::vector<TreeItem> top_level(const ModuleTree& tree) {
  std::vector<TreeItem> result = own_tensors(tree, 0, true);
  append(result, distinct_children(tree, 0));
  append(result, own_tensors(tree, 0, false));
  return result;
}

LargestLayers largest_layers(const ModuleTree& tree, const TreeSizes& sizes,
                             const std::vector<std::string>& no_split,
                             const std::deque<TreeItem>& items) {
  LargestLayers largest;
  std::vector<TreeItem> waiting(items.rbegin(), items.rend());
  while (!waiting.empty()) {
    const TreeItem item = waiting.back();
    waiting.pop_back();
    const bool whole = !item.is_module || names_class(no_split, tree.modules[item.index].type);
    const auto children = whole ? std::vector<TreeItem>() : distinct_children(tree, item.index);
    if (!children.empty()) {
      waiting.insert(waiting.end(), children.rbegin(), children.rend());
      continue;
    }
    const int64_t bits = sizes.bits(item);
    if (bits > largest.bits) largest = {bits, {}};
    if (bits == largest.bits) largest.layers.push_back(item);
  }
  return largest;
}

std::vector<std::vector<size_t>> tied_groups(const ModuleTree& tree, const TreeSizes& sizes) {
  std::map<size_t, std::vector<size_t>> groups;  // by the first registered
  for (size_t t = 0; t < tree.tensors.size(); ++t)
    if (tree.tensors[t].parameter()) groups[sizes.owner(t)].push_back(t);
  std::vector<std::vector<size_t>> result;
  for (auto& [owner, group] : groups) {
    if (group.size() == 1) continue;
    std::sort(group.begin(), group.end(),
              [&](size_t a, size_t b) { return tree.tensors[a].name < tree.tensors[b].name; });
    result.push_back(std::move(group));
  }
  return result;
}

}  // namespace coupler::placement
