#include "placement/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/container/small_vector.hpp>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "placement/device_map.h"
#include "placement/module_tree.h"

namespace coupler::placement {
namespace {

class Units {
 public:
  Units(const ModuleTree& tree, const TreeSizes& sizes, const DeviceMapOptions& options)
      : tree_(tree), sizes_(sizes), options_(options) {
    for (const auto& [path, uses] : options.uses) {
      check_path(tree, path, "uses");
      if (!(uses > 0))
        fail_argument(fmt::format("uses: '{}' is used {} times per run", path, uses), path,
                      "give a number above 0");
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
    const auto uses = find_nearest(options_.uses, tree_.name(items.front()));
    if (uses != options_.uses.end()) unit.uses = uses->second;
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

namespace {

void check_rate(double rate, const std::string& name) {
  if (rate > 0) return;
  fail_argument(fmt::format("rates: {} is {}", name, rate), name,
                "give a number of bytes per second above 0");
}

// One pass over the units in order.
class Run {
 public:
  Run(const CostModel& model, const std::vector<size_t>& assignment)
      : model_(model), assignment_(assignment), used_(model.devices.size()) {
    main_ = model.cpu();  // if the map has no accelerator, everything runs there
    for (const size_t device : assignment) main_ = std::min(main_, device);
    for (size_t u = 0; u < assignment.size(); ++u) {
      const CostUnit& unit = model.units[u];
      const bool offloaded = assignment[u] >= model.cpu() && assignment[u] != main_;
      used_[assignment[u]] += unit.lives;
      if (offloaded) used_[main_] += unit.stays;
    }
    for (size_t d = 0; d < model.disk(); ++d)
      result_.fits = result_.fits && used_[d] <= model.memory[d];
  }

  PredictedRun result(bool with_units) {
    for (size_t u = 0; u < assignment_.size(); ++u) step(u, with_units);
    result_.seconds = now_;
    return std::move(result_);
  }

 private:
  bool room(size_t device, uint64_t bytes) const {
    return used_[device] + bytes <= model_.memory[device];
  }

  void step(size_t u, bool with_units) {
    const CostUnit& unit = model_.units[u];
    size_t runs = assignment_[u];
    if (runs >= model_.cpu() && runs != main_)
      runs = room(main_, unit.moves) ? main_ : model_.cpu();
    if (u > 0 && runs != running_) now_ += model_.hop;
    running_ = runs;
    double begins = now_;
    if (runs != assignment_[u]) {
      begins = std::max(now_, copied(unit, assignment_[u], runs));
      result_.waiting_seconds += begins - now_;
    }
    now_ = begins + unit.reads / model_.rate[runs];
    result_.compute_seconds += now_ - begins;
    if (runs != assignment_[u]) {
      before_last_ = last_;
      last_ = {now_, unit.moves, runs};
    }
    if (with_units)
      result_.units.push_back(
          {"", unit.lives, model_.devices[assignment_[u]], model_.devices[runs], begins, now_});
  }

  // When the unit's copy completes.
  double copied(const CostUnit& unit, size_t from, size_t to) {
    if (!room(to, unit.moves)) result_.fits = false;
    const bool both = last_.device != to || room(to, unit.moves + last_.bytes);
    double seconds = 0;
    if (from == model_.disk()) seconds += unit.copies / model_.disk_to_cpu;
    if (to < model_.cpu()) seconds += unit.copies / model_.cpu_to_accelerator;
    copying_ = std::max(copying_, both ? before_last_.ends : last_.ends) + seconds;
    return copying_;
  }

  // A copy, and when the unit it was made for has run.
  struct Copy {
    double ends = 0;
    uint64_t bytes = 0;
    size_t device = 0;
  };

  const CostModel& model_;
  const std::vector<size_t>& assignment_;
  // A search makes millions of predictions: no allocation unless there are many devices.
  boost::container::small_vector<uint64_t, 18> used_;
  size_t main_ = 0, running_ = 0;
  double now_ = 0, copying_ = 0;  // when the last unit ends, when the last copy ends
  Copy last_, before_last_;
  PredictedRun result_;
};

}  // namespace

CostModel make_cost_model(const std::vector<RunUnit>& units, const DeviceMapOptions& options) {
  CostModel model;
  const DeviceRates& rates = options.rates;
  for (const RunUnit& unit : units)
    model.units.push_back({unit.lives, unit.stays, unit.moves,
                           static_cast<double>(unit.reads) * unit.uses,
                           static_cast<double>(unit.moves) * unit.uses});
  const auto add = [&](MapDevice device, uint64_t bytes, double rate) {
    model.devices.push_back(device);
    model.memory.push_back(bytes);
    model.rate.push_back(rate);
  };
  for (const auto& [device, bytes] : options.max_memory.devices()) {
    if (!device.is_accelerator()) continue;
    check_rate(rates.compute_of(device.index()),
               fmt::format("compute of accelerator {}", device.index()));
    add(device, bytes, rates.compute_of(device.index()));
  }
  add(MapDevice::cpu(), options.max_memory.of(MapDevice::cpu()).value_or(0), rates.cpu_compute);
  add(MapDevice::disk(), 0, 0);
  check_rate(rates.cpu_compute, "cpu_compute");
  check_rate(rates.cpu_to_accelerator, "cpu_to_accelerator");
  check_rate(rates.disk_to_cpu, "disk_to_cpu");
  model.cpu_to_accelerator = rates.cpu_to_accelerator;
  model.disk_to_cpu = rates.disk_to_cpu;
  model.hop = rates.hop_seconds;
  return model;
}

PredictedRun predict_time(const CostModel& model, const std::vector<size_t>& assignment,
                          bool with_units) {
  return Run(model, assignment).result(with_units);
}

}  // namespace coupler::placement
