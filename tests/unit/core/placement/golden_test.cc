// Device maps of 500 random trees must equal Accelerate's. About 150 others show where and why they
// differ.
#include "golden.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "placement/device_map.h"
#include "placement/module_tree.h"
#include "placement/sequential.h"

namespace coupler::placement {
namespace {

std::string map_text(const std::map<std::string, MapDevice>& map) {
  std::string text;
  for (const auto& [path, device] : map) text += fmt::format("{}: {}\n", path, device.to_string());
  return text;
}

// Calls check with each case of a kind; returns their number.
template <class Check>
int for_each_case(const std::string& kind, const Check& check) {
  static const nlohmann::json golden = read_golden();
  int cases = 0;
  for (const auto& row : golden["cases"]) {
    if (row["kind"] != kind) continue;
    SCOPED_TRACE(fmt::format("the tree of seed {}", row["seed"].get<int>()));
    check(row, tree_of(row["tree"]), options_of(row));
    ++cases;
  }
  return cases;
}

TEST(Golden, FiveHundredTrees_GiveAcceleratesMaps) {
  const int cases =
      for_each_case("same", [](const auto& row, const auto& tree, const auto& options) {
        const auto ours = unordered(infer_device_map(tree, options));
        EXPECT_EQ(map_text(ours), map_text(map_of(row["map"])));
      });
  EXPECT_EQ(cases, 500);
}

TEST(Golden, BalancedMemory_IsAccelerates) {
  int compared = 0;
  for (const char* kind : {"same", "buffers", "ties"})
    for_each_case(kind, [&](const auto& row, const auto& tree, const auto& options) {
      if (!row.contains("balanced")) return;
      const TreeSizes sizes(tree, options);
      const MaxMemory ours =
          balanced_memory(tree, sizes, options.max_memory, options.no_split_module_classes,
                          options.mode == "balanced_low_0");
      EXPECT_EQ(ours.devices(), memory_of(row["balanced"]).devices());
      ++compared;
    });
  EXPECT_GT(compared, 250);
}

// Accelerate's maps leave out the buffers of modules that it splits; its check_device_map then
// rejects its own map if they are in the state dict.
TEST(Golden, BuffersThatAccelerateLosesHaveEntries) {
  const int cases =
      for_each_case("buffers", [](const auto& row, const auto& tree, const auto& options) {
        auto ours = unordered(infer_device_map(tree, options));
        const auto theirs = map_of(row["map"]);
        size_t added = 0;
        for (const TreeTensor& tensor : tree.tensors)
          if (!tensor.parameter() && theirs.count(tensor.name) == 0)
            added += ours.erase(tensor.name);
        EXPECT_EQ(map_text(ours), map_text(theirs));
        EXPECT_GT(added, 0u);
      });
  EXPECT_EQ(cases, 60);
}

// Accelerate separates tied parameters, raises an exception (IndexError in
// get_module_size_with_ties and similar) or is misled by names: our map covers everything and keeps
// ties.
TEST(Golden, WhereAccelerateHasNoValidMap_OursIs) {
  int cases = 0;
  for (const char* kind : {"ties", "raised", "collides"})
    cases += for_each_case(kind, [](const auto&, const auto& tree, const auto& options) {
      const DeviceMap map = infer_device_map(tree, options);
      std::map<uint64_t, MapDevice> parameters;  // by storage
      for (const TreeTensor& tensor : tree.tensors) {
        const auto device = map.device_of(tensor.name);
        ASSERT_TRUE(device) << tensor.name;
        if (!tensor.parameter()) continue;
        EXPECT_EQ(parameters.emplace(tensor.storage, *device).first->second, *device)
            << tensor.name;
      }
    });
  EXPECT_EQ(cases, 65);
}

// Accelerate leaves such layers on the disk, where they cannot run.
TEST(Golden, LayerTooLargeForEveryDevice_IsAnError) {
  const int cases =
      for_each_case("too_small", [](const auto&, const auto& tree, const auto& options) {
        EXPECT_THROW(infer_device_map(tree, options), Error);
      });
  EXPECT_EQ(cases, 20);
}

// The map for GPT-J-6B on Accelerate's page about big models: blocks 0 to 23 on the first
// accelerator, the others, ln_f and lm_head on the second.
TEST(Golden, GptJ_GivesThePrintedMap) {
  const nlohmann::json golden = read_golden()["gpt_j"];
  const DeviceMap map = infer_device_map(tree_of(golden["tree"]), options_of(golden));
  DeviceMap printed = {{"transformer.wte", 0}, {"transformer.drop", 0}};
  for (int i = 0; i < 28; ++i) printed.set(fmt::format("transformer.h.{}", i), i < 24 ? 0 : 1);
  printed.set("transformer.ln_f", 1);
  printed.set("lm_head", 1);
  EXPECT_EQ(map.to_json(), printed.to_json());
  EXPECT_EQ(map_text(unordered(map)), map_text(map_of(golden["map"])));
}

}  // namespace
}  // namespace coupler::placement
