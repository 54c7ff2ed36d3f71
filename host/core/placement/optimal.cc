#include "placement/optimal.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/byte_size.h"
#include "base/log.h"
#include "placement/check_map.h"
#include "placement/finish_map.h"
#include "placement/forecast.h"
#include "placement/search.h"
#include "placement/sequential.h"

namespace coupler {
namespace {

void check_units(const ModuleTree& tree, const std::vector<RunUnit>& units,
                 const MaxMemory& memory) {
  uint64_t most = 0;
  for (const auto& [device, bytes] : memory.devices())
    if (!device.is_disk()) most = std::max(most, bytes);
  for (const RunUnit& unit : units)
    if (unit.reads > most) refuse_size(name_of(tree, unit), unit.reads, most);
}

// The assignment equivalent to a map; nullopt if the map divides units.
std::optional<std::vector<size_t>> assignment_of(const ModuleTree& tree, const RunProblem& problem,
                                                 const std::vector<RunUnit>& units,
                                                 const DeviceMap& map) {
  std::vector<size_t> lies;
  for (const RunUnit& unit : units) {
    const auto device = map.device_of(tree.tensors[unit.tensors.front()].name);
    for (const size_t t : unit.tensors)
      if (map.device_of(tree.tensors[t].name) != device) return std::nullopt;
    const auto place = std::find(problem.devices.begin(), problem.devices.end(), *device);
    lies.push_back(static_cast<size_t>(place - problem.devices.begin()));
  }
  return lies;
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

DeviceMap map_of(const ModuleTree& tree, const TreeSizes& sizes, const RunProblem& problem,
                 const std::vector<RunUnit>& units, const std::vector<size_t>& lies, bool clean) {
  Placement placement;
  for (size_t u = 0; u < units.size(); ++u)
    for (const TreeItem item : units[u].items)
      placement.emplace_back(item, problem.devices[lies[u]]);
  place_empty_modules(tree, placement);
  return finished_map(tree, sizes, placement, clean);
}

}  // namespace

DeviceMap optimal_map(const ModuleTree& tree, const TreeSizes& sizes,
                      const DeviceMapOptions& options) {
  const std::vector<RunUnit> units = run_units(tree, sizes, options);
  check_units(tree, units, options.max_memory);
  const RunProblem problem = run_problem(units, options);
  DeviceMap sequential = finished_map(
      tree, sizes,
      place_sequentially(tree, sizes, options.max_memory, {options.no_split_module_classes, false}),
      options.clean_result);
  std::vector<std::vector<size_t>> starts;
  if (auto start = assignment_of(tree, problem, units, sequential))
    starts.push_back(std::move(*start));
  const auto found = search_placement(problem, units, starts);
  const PredictedRun compatible = predicted_run(tree, sequential, options);
  if (compatible.fits && (!found || compatible.seconds < found->forecast.seconds))
    return sequential;
  if (!found)
    throw Error(
        ErrorCode::kInvalidArgument,
        "found no device map in which every part of the model has a device to run on within "
        "max_memory",
        {.subject = "max_memory",
         .hint = "give the devices more memory, use a smaller dtype, or set offload_buffers"});
  if (log_enabled(LogLevel::kDebug, "placement"))
    log(LogLevel::kDebug, "placement",
        fmt::format("predicted {:.6f} s per run, {:.6f} s for the sequential map; {}",
                    found->forecast.seconds, compatible.seconds,
                    found->exact ? "nothing is faster" : "the best of those tried"));
  return map_of(tree, sizes, problem, units, found->lies, options.clean_result);
}

PredictedRun predicted_run(const ModuleTree& tree, const DeviceMap& map,
                           const DeviceMapOptions& options) {
  check_map(tree, map);
  const TreeSizes sizes(tree, {options.dtype, options.special_dtypes});
  const std::vector<RunUnit> units = run_units(tree, sizes, options, map);
  const RunProblem problem = run_problem(units, options);
  std::vector<size_t> lies;
  for (const RunUnit& unit : units) {
    const MapDevice device = *map.device_of(tree.tensors[unit.tensors.front()].name);
    const auto place = std::find(problem.devices.begin(), problem.devices.end(), device);
    if (place == problem.devices.end())
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the device map puts '{}' on {}, which is not in max_memory",
                              name_of(tree, unit), device.to_string()),
                  {.subject = device.to_string(), .hint = "add the device to max_memory"});
    lies.push_back(static_cast<size_t>(place - problem.devices.begin()));
  }
  PredictedRun run;
  const Forecast result = forecast(problem, lies, &run.units);
  for (size_t u = 0; u < units.size(); ++u) run.units[u].path = name_of(tree, units[u]);
  run.seconds = result.seconds;
  run.compute_seconds = result.compute;
  run.waiting_seconds = result.waiting;
  run.fits = result.fits;
  return run;
}

}  // namespace coupler
