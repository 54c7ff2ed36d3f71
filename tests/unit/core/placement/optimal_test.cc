#include "placement/optimal.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "placement/device_map.h"
#include "trees.h"

namespace coupler::placement {
namespace {

// The minimum of seconds over all assignments, and how many of them fit.
std::pair<double, int> tried_all(const CostModel& model, const std::vector<RunUnit>& units) {
  size_t groups = 0;
  for (const RunUnit& unit : units) groups = std::max(groups, unit.group + 1);
  std::vector<size_t> device(groups), assignment(units.size());
  double least = std::numeric_limits<double>::infinity();
  int fitting = 0;
  while (true) {
    for (size_t u = 0; u < units.size(); ++u) assignment[u] = device[units[u].group];
    const PredictedRun result = predict_time(model, assignment);
    fitting += result.fits ? 1 : 0;
    if (result.fits) least = std::min(least, result.seconds);
    size_t g = 0;
    while (g < groups && ++device[g] == model.devices.size()) device[g++] = 0;
    if (g == groups) return {least, fitting};
  }
}

DeviceMapOptions random_options(std::mt19937& random, const ModuleTree& tree) {
  uint64_t total = 0;
  for (const TreeTensor& tensor : tree.tensors) total += tensor.elements;
  const auto part = [&] { return total * (random() % 80) / 100; };
  DeviceMapOptions options;
  options.mode = "optimal";
  const unsigned accelerators = random() % 3;
  for (unsigned i = 0; i < accelerators; ++i) options.max_memory.set(static_cast<int>(i), part());
  options.max_memory.set("cpu", 101 + part() * (random() % 3));
  if (random() % 2 == 0) options.no_split_module_classes = {"Block"};
  options.offload_buffers = random() % 2 == 0;
  options.rates = plain_rates();
  options.rates.hop_seconds = static_cast<double>(random() % 3);
  if (random() % 2 == 0) options.rates.accelerators = {{1, 300}};
  if (random() % 3 == 0) options.uses["0"] = 4;
  return options;
}

// Checks only the guarantee: every parameter and buffer is on a device, and no device exceeds its
// budget.
void expect_covered_and_within(const ModuleTree& tree, const DeviceMap& map,
                               const DeviceMapOptions& options) {
  check_map(tree, map);
  const TreeSizes sizes(tree, {});
  std::map<MapDevice, uint64_t> used;
  for (size_t t = 0; t < tree.tensors.size(); ++t) {
    const auto device = map.device_of(tree.tensors[t].name);
    ASSERT_TRUE(device) << tree.tensors[t].name;
    if (sizes.owner(t) == t) used[*device] += tree.tensors[t].elements;
  }
  for (const auto& [device, bytes] : used)
    EXPECT_TRUE(device.is_disk() || bytes <= options.max_memory.of(device).value_or(0));
}

TEST(Search, SmallTrees_FindsTheLeastOfAllAssignments) {
  std::mt19937 random(7);
  int compared = 0, several = 0;
  for (int i = 0; i < 300; ++i) {
    const ModuleTree tree = random_tree(random, 1 + static_cast<int>(random() % 3));
    const DeviceMapOptions options = random_options(random, tree);
    const auto units = run_units(tree, TreeSizes(tree, {}), options);
    if (units.size() > 7) continue;
    const CostModel model = make_cost_model(units, options);
    const auto [least, fitting] = tried_all(model, units);
    const auto found = search_placement(model, units);
    ASSERT_EQ(found.has_value(), fitting > 0);
    if (!found) continue;
    EXPECT_TRUE(found->exact);
    EXPECT_NEAR(found->seconds, least, 1e-9 * least);
    ++compared;
    several += fitting > 10 ? 1 : 0;
  }
  EXPECT_GT(compared, 150);
  EXPECT_GT(several, 50);
  std::printf("compared with all assignments: %d trees\n", compared);
}

TEST(OptimalMap, RandomTrees_NeverSlowerThanSequentialAndWithinBudgets) {
  std::mt19937 random(11);
  int compared = 0, refused = 0, beyond = 0;
  double logs = 0, best = 1;
  for (int i = 0; i < 300; ++i) {
    const ModuleTree tree = random_tree(random, 2 + static_cast<int>(random() % 12));
    DeviceMapOptions options = random_options(random, tree);
    DeviceMap map;
    try {
      map = infer_device_map(tree, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      ++refused;
      continue;
    }
    expect_covered_and_within(tree, map, options);
    const PredictedRun ours = predicted_run(tree, map, options);
    EXPECT_TRUE(ours.fits);
    DeviceMapOptions compatible = options;
    compatible.mode = "sequential";
    try {
      const PredictedRun theirs = predicted_run(tree, infer_device_map(tree, compatible), options);
      if (!theirs.fits) {
        ++beyond;  // Accelerate does not count the buffers of modules that it splits
        continue;
      }
      EXPECT_LE(ours.seconds, theirs.seconds * (1 + 1e-9));
      ++compared;
      logs += std::log(theirs.seconds / ours.seconds);
      best = std::max(best, theirs.seconds / ours.seconds);
    } catch (const Error&) {
      // A layer too large for the compatible mode, which does not split it.
    }
  }
  EXPECT_GT(compared, 150);
  std::printf(
      "of 300 trees: %d compared (sequential/optimal: mean %.2f, best %.1f), %d refused, "
      "%d whose sequential map does not fit\n",
      compared, std::exp(logs / compared), best, refused, beyond);
}

double sequential_to_optimal(const ModuleTree& tree, DeviceMapOptions options, DeviceMap* map) {
  options.mode = "sequential";
  const double compatible = predicted_run(tree, infer_device_map(tree, options), options).seconds;
  options.mode = "optimal";
  *map = infer_device_map(tree, options);
  return compatible / predicted_run(tree, *map, options).seconds;
}

constexpr uint64_t kMiB = uint64_t{1} << 20;

// "If your first layer is bigger than the GPU, everything ends up on the CPU or the disk."
TEST(OptimalMap, FirstLayerTooBig_TheOthersAreOnTheAccelerator) {
  std::vector<uint64_t> bytes(25, 400 * kMiB);
  bytes[0] = 12'000 * kMiB;
  DeviceMapOptions options;
  options.max_memory = {{0, "11GiB"}, {"cpu", "64GiB"}};
  DeviceMap map;
  const double ratio = sequential_to_optimal(layers(bytes), options, &map);
  EXPECT_TRUE(map.device_of("0.weight")->is_cpu());
  for (int i = 1; i < 25; ++i) EXPECT_EQ(map.device_of(std::to_string(i)), MapDevice(0));
  EXPECT_GE(ratio, 1.3);
  std::printf("first layer too big: %.2f times as fast as sequential\n", ratio);
}

TEST(OptimalMap, FirstLayerTooBigOfParts_IsDivided) {
  ModuleTree tree("Net");
  const size_t first = add_child(tree, 0, "experts", "Experts");
  for (int i = 0; i < 12; ++i)
    add_bytes(tree, add_child(tree, first, std::to_string(i)), "weight", 1000 * kMiB);
  for (int i = 0; i < 4; ++i)
    add_bytes(tree, add_child(tree, 0, "layer" + std::to_string(i)), "weight", 400 * kMiB);
  DeviceMapOptions options;
  options.max_memory = {{0, "11GiB"}, {"cpu", "64GiB"}};
  options.no_split_module_classes = {"Experts"};
  DeviceMap map;
  const double ratio = sequential_to_optimal(tree, options, &map);
  EXPECT_GT(std::count_if(map.entries().begin(), map.entries().end(),
                          [](const auto& entry) { return entry.second.is_accelerator(); }),
            7);
  EXPECT_GE(ratio, 1.3);
  std::printf("first layer too big, split: %.2f times as fast as sequential\n", ratio);
}

// Layers of unequal size: a large later one needs room that earlier ones could take.
TEST(OptimalMap, UnequalLayers_TheRoomIsUsed) {
  std::vector<uint64_t> bytes;
  for (int i = 0; i < 16; ++i) bytes.push_back((i % 4 == 3 ? 3000 : 500) * kMiB);
  DeviceMapOptions options;
  options.max_memory = {{0, "16GiB"}, {"cpu", "64GiB"}};
  DeviceMap map;
  const double ratio = sequential_to_optimal(layers(bytes), options, &map);
  EXPECT_GE(ratio, 1.3);
  std::printf("unequal layers: %.2f times as fast as sequential\n", ratio);
}

TEST(OptimalMap, HotModule_StaysNear) {
  DeviceMapOptions options;
  options.mode = "optimal";
  options.max_memory = {{0, 300}, {"cpu", 1000}};
  options.rates = plain_rates();
  options.rates.cpu_compute = 1;
  options.uses = {{"3", 10}};
  const DeviceMap map = infer_device_map(layers({100, 100, 100, 100}), options);
  EXPECT_EQ(map.device_of("3"), MapDevice(0));
  EXPECT_EQ(std::count_if(map.entries().begin(), map.entries().end(),
                          [](const auto& entry) { return entry.second.is_cpu(); }),
            2);
}

TEST(OptimalMap, TensorTooLargeForAll_NamesIt) {
  DeviceMapOptions options;
  options.mode = "optimal";
  options.max_memory = {{0, 50}, {"cpu", 90}};
  try {
    infer_device_map(layers({10, 100}), options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what())
            .find("'1.weight' takes 100 B (100 bytes), and no device may hold more than 90 B"),
        std::string::npos);
  }
}

TEST(OptimalMap, ManyLayers_IsFoundAndNoSlower) {
  std::vector<uint64_t> bytes(400);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = (100 + i * 37 % 400) * kMiB;
  DeviceMapOptions options;
  options.max_memory = {{0, "24GiB"}, {1, "24GiB"}, {"cpu", "48GiB"}};
  DeviceMap map;
  const double ratio = sequential_to_optimal(layers(bytes), options, &map);
  EXPECT_GE(ratio, 1);
  std::printf("400 layers on two accelerators, CPU and disk: %.2f times as fast as sequential\n",
              ratio);
}

}  // namespace
}  // namespace coupler::placement
