#include "placement/optimal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "placement/cost_model.h"
#include "placement/device_map.h"
#include "placement/sequential.h"

namespace coupler::placement {
namespace {

// Units that share a device.
struct Group {
  std::vector<size_t> units;
  uint64_t lives = 0, moves = 0;
  double reads = 0, copies = 0;
};

std::vector<Group> groups_of(const CostModel& model, const std::vector<RunUnit>& units) {
  std::vector<Group> groups;
  for (size_t u = 0; u < units.size(); ++u) {
    groups.resize(std::max(groups.size(), units[u].group + 1));
    Group& group = groups[units[u].group];
    group.units.push_back(u);
    group.lives += model.units[u].lives;
    group.moves = std::max(group.moves, model.units[u].moves);
    group.reads += model.units[u].reads;
    group.copies += model.units[u].copies;
  }
  return groups;
}

// The bytes of copies saved per byte stored on an accelerator: highest for units used often.
double worth(const Group& group) {
  return group.lives == 0 ? 1e300 : group.copies / static_cast<double>(group.lives);
}

// Assignments of units to devices with which a search starts: devices filled one after the other,
// preferring the units that are most valuable, largest, smallest or first, or offloading evenly
// spaced units; each with room for the copies of no, one or two units on the first accelerator. Not
// all of them fit.
class InitialAssignments {
 public:
  InitialAssignments(const CostModel& model, const std::vector<Group>& groups)
      : model_(model), groups_(groups) {}

  std::vector<std::vector<size_t>> take() {
    std::vector<size_t> order(groups_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto by = [&](const auto& key) {
      std::vector<size_t> result = order;
      std::stable_sort(result.begin(), result.end(),
                       [&](size_t a, size_t b) { return key(groups_[a]) > key(groups_[b]); });
      add(result);
    };
    add(order);
    add({order.rbegin(), order.rend()});
    by(worth);
    by([](const Group& g) { return static_cast<double>(g.lives); });
    by([](const Group& g) { return -static_cast<double>(g.lives); });
    // Every n-th group last or first: copies of groups that are far apart overlap with running the
    // others.
    for (size_t n = 2; n <= 16 && n < groups_.size(); ++n)
      for (const bool rest_last : {false, true}) {
        std::vector<size_t> result = order;
        std::stable_partition(result.begin(), result.end(),
                              [&](size_t g) { return (g % n == n - 1) == rest_last; });
        add(result);
      }
    return std::move(guesses_);
  }

 private:
  // One assignment each with room for 0, 1 and 2 units' copies on the first accelerator.
  void add(const std::vector<size_t>& preferred) {
    for (const uint64_t copies : {0, 1, 2}) guesses_.push_back(filled(preferred, copies));
  }

  // Chooses the groups on accelerators by preference, then assigns the chosen ones in the order of
  // units, so that the run rarely changes the device.
  std::vector<size_t> filled(const std::vector<size_t>& preferred, uint64_t copies) const {
    std::vector<uint64_t> room = model_.memory;
    uint64_t largest = 0;
    for (const Group& group : groups_) largest = std::max(largest, group.moves);
    if (model_.cpu() > 0) room[0] -= std::min(room[0], copies * largest);
    const uint64_t total = std::accumulate(
        room.begin(), room.begin() + static_cast<std::ptrdiff_t>(model_.cpu()), uint64_t{0});
    std::vector<bool> near(groups_.size());
    uint64_t taken = 0;
    for (const size_t g : preferred) {
      near[g] = taken + groups_[g].lives <= total;
      if (near[g]) taken += groups_[g].lives;
    }
    std::vector<size_t> assignment(model_.units.size(), model_.disk());
    std::vector<size_t> left;
    size_t begin = 0;  // the device being filled
    for (size_t g = 0; g < groups_.size(); ++g)
      if (!near[g] || !put(g, 0, begin, model_.cpu(), room, assignment)) left.push_back(g);
    // The most valuable on the CPU, the others on the disk.
    std::stable_sort(left.begin(), left.end(),
                     [&](size_t a, size_t b) { return worth(groups_[a]) > worth(groups_[b]); });
    size_t cpu = model_.cpu();
    for (const size_t g : left) put(g, cpu, cpu, model_.disk(), room, assignment);
    return assignment;
  }

  // Puts g on the first device with room in [begin, end), else in [first, begin), and sets begin to
  // it.
  bool put(size_t g, size_t first, size_t& begin, size_t end, std::vector<uint64_t>& room,
           std::vector<size_t>& assignment) const {
    for (size_t turn = first; turn < end; ++turn) {
      const size_t d = begin + (turn - first) < end ? begin + (turn - first) : begin + turn - end;
      if (room[d] < groups_[g].lives) continue;
      room[d] -= groups_[g].lives;
      for (const size_t unit : groups_[g].units) assignment[unit] = d;
      begin = d;
      return true;
    }
    return false;
  }

  const CostModel& model_;
  const std::vector<Group>& groups_;
  std::vector<std::vector<size_t>> guesses_;
};

constexpr double kNever = std::numeric_limits<double>::infinity();
// Work limits for improving and for branch and bound, in predictions × units: tenths of a second.
constexpr size_t kImproveWork = 10'000'000;
constexpr size_t kExactWork = 3'000'000;

class Search {
 public:
  Search(const CostModel& model, const std::vector<Group>& groups)
      : model_(model),
        groups_(groups),
        fastest_(*std::max_element(model.rate.begin(), model.rate.end())),
        used_(model.devices.size()) {
    best_.assignment.assign(model.units.size(), model.disk());
    best_.seconds = seconds_of(best_.assignment);
  }

  void offer(const std::vector<size_t>& assignment) {
    const double seconds = seconds_of(assignment);
    if (seconds >= best_.seconds) return;
    best_.seconds = seconds;
    best_.assignment = assignment;
  }

  // Moves single groups and swaps pairs while that helps.
  void improve() {
    work_ = kImproveWork;
    for (bool better = true; better && work_ > 0;) {
      better = false;
      for (size_t g = 0; g < groups_.size() && work_ > 0; ++g) {
        for (size_t d = 0; d < model_.devices.size(); ++d)
          better = try_change(g, d, g, d) || better;
        for (size_t other = g + 1; other < groups_.size() && work_ > 0; ++other)
          better = try_change(g, device_of(other), other, device_of(g)) || better;
      }
    }
  }

  void prove() {
    // rest_[g]: the least time in which group g and all that follow can run, on any device.
    rest_.assign(groups_.size() + 1, 0);
    for (size_t g = groups_.size(); g-- > 0;) rest_[g] = rest_[g + 1] + groups_[g].reads / fastest_;
    work_ = kExactWork;
    assignment_ = best_.assignment;
    branch(0, 0);
    best_.exact = work_ > 0;
  }

  std::optional<SearchResult> result() {
    return best_.seconds == kNever ? std::nullopt : std::optional(best_);
  }

 private:
  double seconds_of(const std::vector<size_t>& assignment) {
    work_ -= std::min(work_, assignment.size() + 1);
    const PredictedRun result = predict_time(model_, assignment);
    return result.fits ? result.seconds : kNever;
  }

  size_t device_of(size_t group) const { return best_.assignment[groups_[group].units.front()]; }
  void put(std::vector<size_t>& assignment, size_t group, size_t device) const {
    for (const size_t unit : groups_[group].units) assignment[unit] = device;
  }

  bool try_change(size_t a, size_t to_a, size_t b, size_t to_b) {
    const size_t from_a = device_of(a), from_b = device_of(b);
    if (from_a == to_a && from_b == to_b) return false;
    put(best_.assignment, a, to_a);
    put(best_.assignment, b, to_b);
    const double seconds = seconds_of(best_.assignment);
    // Ignores differences in the last digits; chasing them could loop forever.
    if (seconds < best_.seconds * (1 - 1e-12)) {
      best_.seconds = seconds;
      return true;
    }
    put(best_.assignment, a, from_a);
    put(best_.assignment, b, from_b);
    return false;
  }

  // The groups before g have a device and take at least `least` seconds to run.
  void branch(size_t g, double least) {
    if (work_ == 0 || least + rest_[g] >= best_.seconds) return;
    if (g == groups_.size()) return offer(assignment_);
    const Group& group = groups_[g];
    for (size_t d = 0; d < model_.devices.size(); ++d) {
      if (d != model_.disk() && used_[d] + group.lives > model_.memory[d]) continue;
      put(assignment_, g, d);
      used_[d] += group.lives;
      // Offloaded units run on the main device or on the CPU.
      branch(g + 1, least + group.reads / (d < model_.cpu() ? model_.rate[d] : fastest_));
      used_[d] -= group.lives;
      work_ -= std::min<size_t>(work_, 1);
    }
  }

  const CostModel& model_;
  const std::vector<Group>& groups_;
  const double fastest_;  // the highest rate of a device
  std::vector<size_t> assignment_;
  std::vector<uint64_t> used_;
  std::vector<double> rest_;
  size_t work_ = kImproveWork;
  SearchResult best_;
};

}  // namespace

std::optional<SearchResult> search_placement(const CostModel& model,
                                             const std::vector<RunUnit>& units,
                                             const std::vector<std::vector<size_t>>& starts) {
  const std::vector<Group> groups = groups_of(model, units);
  Search search(model, groups);
  for (const auto& start : starts) search.offer(start);
  for (const auto& guess : InitialAssignments(model, groups).take()) search.offer(guess);
  search.improve();
  search.prove();
  return search.result();
}

namespace {

// The assignment equivalent to a map; nullopt if the map divides units.
std::optional<std::vector<size_t>> assignment_of(const ModuleTree& tree, const CostModel& model,
                                                 const std::vector<RunUnit>& units,
                                                 const DeviceMap& map) {
  std::vector<size_t> assignment;
  for (const RunUnit& unit : units) {
    const auto device = map.device_of(tree.tensors[unit.tensors.front()].name);
    for (const size_t t : unit.tensors)
      if (map.device_of(tree.tensors[t].name) != device) return std::nullopt;
    const auto place = std::find(model.devices.begin(), model.devices.end(), *device);
    assignment.push_back(static_cast<size_t>(place - model.devices.begin()));
  }
  return assignment;
}

// Modules without a tensor go to the device of the unit before them, so that a module on one device
// becomes one entry.
void place_empty_modules(const ModuleTree& tree, Placement& placement) {
  if (placement.empty()) return;
  const auto position = [&](TreeItem item) {
    return item.is_module ? item.index : tree.tensors[item.index].module;
  };
  Placement empty;
  size_t next = 0;  // the first item after the module
  for (size_t m = 1; m < tree.modules.size(); ++m) {
    while (next < placement.size() && position(placement[next].first) <= m) ++next;
    const auto& before = placement[next == 0 ? 0 : next - 1];
    const TreeModule& module = tree.modules[m];
    if (module.children.empty() && module.tensors.empty() && !tree.holds(before.first, {true, m}))
      empty.emplace_back(TreeItem{true, m}, before.second);
  }
  placement.insert(placement.end(), empty.begin(), empty.end());
}

DeviceMap map_of(const ModuleTree& tree, const TreeSizes& sizes, const CostModel& model,
                 const std::vector<RunUnit>& units, const std::vector<size_t>& assignment,
                 bool clean) {
  Placement placement;
  for (size_t u = 0; u < units.size(); ++u)
    for (const TreeItem item : units[u].items)
      placement.emplace_back(item, model.devices[assignment[u]]);
  place_empty_modules(tree, placement);
  return finished_map(tree, sizes, placement, clean);
}

}  // namespace

DeviceMap optimal_map(const ModuleTree& tree, const TreeSizes& sizes,
                      const DeviceMapOptions& options) {
  const std::vector<RunUnit> units = run_units(tree, sizes, options);
  for (const RunUnit& unit : units) check_size(name_of(tree, unit), unit.reads, options.max_memory);
  const CostModel model = make_cost_model(units, options);
  DeviceMap sequential = finished_map(
      tree, sizes,
      place_sequentially(tree, sizes, options.max_memory, {options.no_split_module_classes, false}),
      options.clean_result);
  std::vector<std::vector<size_t>> starts;
  if (auto start = assignment_of(tree, model, units, sequential))
    starts.push_back(std::move(*start));
  const auto found = search_placement(model, units, starts);
  const PredictedRun compatible = predicted_run(tree, sequential, options);
  if (compatible.fits && (!found || compatible.seconds < found->seconds)) return sequential;
  if (!found)
    fail_argument(
        "found no device map in which every part of the model has a device to run on within "
        "max_memory",
        "max_memory", "give the devices more memory, use a smaller dtype, or set offload_buffers");
  if (log_enabled(LogLevel::kDebug, "placement"))
    log(LogLevel::kDebug, "placement",
        fmt::format("predicted {:.6f} s per run, {:.6f} s for the sequential map; {}",
                    found->seconds, compatible.seconds,
                    found->exact ? "nothing is faster" : "the best of those tried"));
  return map_of(tree, sizes, model, units, found->assignment, options.clean_result);
}

PredictedRun predicted_run(const ModuleTree& tree, const DeviceMap& map,
                           const DeviceMapOptions& options) {
  check_map(tree, map);
  const TreeSizes sizes(tree, options);
  const std::vector<RunUnit> units = run_units(tree, sizes, options, map);
  const CostModel model = make_cost_model(units, options);
  std::vector<size_t> assignment;
  for (const RunUnit& unit : units) {
    const MapDevice device = *map.device_of(tree.tensors[unit.tensors.front()].name);
    const auto place = std::find(model.devices.begin(), model.devices.end(), device);
    if (place == model.devices.end())
      fail_argument(fmt::format("the device map puts '{}' on {}, which is not in max_memory",
                                name_of(tree, unit), device.to_string()),
                    device.to_string(), "add the device to max_memory");
    assignment.push_back(static_cast<size_t>(place - model.devices.begin()));
  }
  PredictedRun run = predict_time(model, assignment, /*with_units=*/true);
  for (size_t u = 0; u < units.size(); ++u) run.units[u].path = name_of(tree, units[u]);
  return run;
}

}  // namespace coupler::placement
