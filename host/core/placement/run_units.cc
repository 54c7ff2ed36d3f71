#include "placement/run_units.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "placement/check_map.h"
#include "placement/layers.h"

namespace coupler {
namespace {

// Looks up the longest path in `uses` that is the module or one above it; 1 without any.
double uses_of(const std::map<std::string, double>& uses, std::string path) {
  while (true) {
    const auto found = uses.find(path);
    if (found != uses.end()) return found->second;
    if (path.empty()) return 1;
    const size_t dot = path.rfind('.');
    path.resize(dot == std::string::npos ? 0 : dot);
  }
}

class Units {
 public:
  Units(const ModuleTree& tree, const TreeSizes& sizes, const DeviceMapOptions& options)
      : tree_(tree), sizes_(sizes), options_(options) {
    for (const auto& [path, uses] : options.uses) {
      check_path(tree, path, "uses");
      if (!(uses > 0))
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("uses: '{}' is used {} times per run", path, uses),
                    {.subject = path, .hint = "give a number above 0"});
    }
    uint64_t cpu = 0;
    for (const auto& [device, bytes] : options.max_memory.devices())
      (device.is_accelerator() ? most_ : cpu) =
          std::max(device.is_accelerator() ? most_ : cpu, device.is_disk() ? 0 : bytes);
    if (most_ == 0) most_ = cpu;
  }

  std::vector<RunUnit> take() {
    visit(0);
    group();
    return std::move(units_);
  }

  RunUnit unit_of(std::vector<TreeItem> items, std::vector<size_t> tensors) const {
    RunUnit unit;
    unit.uses = uses_of(options_.uses, tree_.name(items.front()));
    std::set<uint64_t> met;
    for (const size_t t : tensors) {
      const TreeTensor& tensor = tree_.tensors[t];
      if (!met.insert(sizes_.owner(t)).second) continue;
      const uint64_t bytes = sizes_.bytes(sizes_.owner(t));
      const bool stays = !tensor.parameter() && !options_.offload_buffers;
      if (!tensor.parameter() || sizes_.owner(t) == t) unit.lives += bytes;
      unit.reads += bytes;
      (stays ? unit.stays : unit.moves) += bytes;
    }
    unit.items = std::move(items);
    unit.tensors = std::move(tensors);
    return unit;
  }

 private:
  void visit(size_t module) {
    const TreeModule& here = tree_.modules[module];
    const bool whole =
        here.children.empty() || names_class(options_.no_split_module_classes, here.type);
    if (whole) {
      std::vector<size_t> tensors;
      for (size_t m = module; m < here.end; ++m)
        tensors.insert(tensors.end(), tree_.modules[m].tensors.begin(),
                       tree_.modules[m].tensors.end());
      if (add({{true, module}}, std::move(tensors))) return;
    }
    std::vector<TreeItem> own;
    for (const size_t t : here.tensors) own.push_back({false, t});
    if (!own.empty() && !add(own, here.tensors))
      for (const size_t t : here.tensors) units_.push_back(unit_of({{false, t}}, {t}));
    for (const size_t child : here.children) visit(child);
  }

  // Returns false if it is too large for one unit.
  bool add(std::vector<TreeItem> items, std::vector<size_t> tensors) {
    if (tensors.empty()) return true;
    RunUnit unit = unit_of(std::move(items), std::move(tensors));
    if (unit.reads > most_) return false;
    units_.push_back(std::move(unit));
    return true;
  }

  void group() {
    std::vector<size_t> root(units_.size());
    std::iota(root.begin(), root.end(), size_t{0});
    std::map<size_t, size_t> holder;  // of each parameter, the first unit
    for (size_t u = 0; u < units_.size(); ++u) {
      for (const size_t t : units_[u].tensors) {
        if (!tree_.tensors[t].parameter()) continue;
        const size_t other = root[holder.emplace(sizes_.owner(t), u).first->second];
        const size_t mine = root[u];
        if (mine == other) continue;
        for (size_t& r : root)
          if (r == mine || r == other) r = std::min(mine, other);
      }
    }
    std::map<size_t, size_t> numbers;
    for (size_t u = 0; u < units_.size(); ++u)
      units_[u].group = numbers.emplace(root[u], numbers.size()).first->second;
  }

  const ModuleTree& tree_;
  const TreeSizes& sizes_;
  const DeviceMapOptions& options_;
  uint64_t most_ = 0;
  std::vector<RunUnit> units_;
};

}  // namespace

std::vector<RunUnit> run_units(const ModuleTree& tree, const TreeSizes& sizes,
                               const DeviceMapOptions& options) {
  return Units(tree, sizes, options).take();
}

std::vector<RunUnit> run_units(const ModuleTree& tree, const TreeSizes& sizes,
                               const DeviceMapOptions& options, const DeviceMap& map) {
  Units maker(tree, sizes, options);
  std::vector<RunUnit> result;
  for (RunUnit& unit : maker.take()) {
    std::vector<std::pair<MapDevice, std::vector<size_t>>> parts;
    for (const size_t t : unit.tensors) {
      const MapDevice device = *map.device_of(tree.tensors[t].name);
      auto part = std::find_if(parts.begin(), parts.end(),
                               [&](const auto& p) { return p.first == device; });
      if (part == parts.end()) part = parts.insert(part, {device, {}});
      part->second.push_back(t);
    }
    if (parts.size() == 1) {
      result.push_back(std::move(unit));
      continue;
    }
    for (auto& [device, tensors] : parts) {
      std::vector<TreeItem> items;
      for (const size_t t : tensors) items.push_back({false, t});
      result.push_back(maker.unit_of(std::move(items), std::move(tensors)));
      result.back().group = unit.group;
    }
  }
  return result;
}

const std::string& name_of(const ModuleTree& tree, const RunUnit& unit) {
  return tree.name(unit.items.front());
}

}  // namespace coupler
