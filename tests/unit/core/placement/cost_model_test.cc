// The model of predict_run, on runs short enough to compute by hand.
#include "placement/cost_model.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include "placement/optimal.h"
#include "trees.h"

namespace coupler::placement {
namespace {

DeviceMapOptions options_with(const MaxMemory& memory) {
  DeviceMapOptions options;
  options.max_memory = memory;
  options.rates = plain_rates();
  return options;
}

TEST(PredictRun, AllNear_IsTheTimeOfReading) {
  const PredictedRun run = predicted_run(layers({100, 300}), {{"", 0}}, options_with({{0, 400}}));
  EXPECT_DOUBLE_EQ(run.seconds, 4);
  EXPECT_DOUBLE_EQ(run.waiting_seconds, 0);
  EXPECT_TRUE(run.fits);
  ASSERT_EQ(run.units.size(), 2u);
  EXPECT_EQ(run.units[1].path, "1");
  EXPECT_EQ(run.units[1].bytes, 300u);
  EXPECT_DOUBLE_EQ(run.units[1].begins, 1);
  EXPECT_DOUBLE_EQ(run.units[1].ends, 4);
}

TEST(PredictRun, OffloadedUnit_IsCopiedWhileOthersRun) {
  const DeviceMap map = {{"0", 0}, {"1", "cpu"}};
  const PredictedRun run =
      predicted_run(layers({400, 100}), map, options_with({{0, 500}, {"cpu", 100}}));
  // The copy takes 10 s from the start; the first layer overlaps with 4 s of it.
  EXPECT_DOUBLE_EQ(run.waiting_seconds, 6);
  EXPECT_DOUBLE_EQ(run.seconds, 11);
  EXPECT_EQ(run.units[1].stored_on, MapDevice::cpu());
  EXPECT_EQ(run.units[1].runs_on, MapDevice(0));
}

TEST(PredictRun, NoRoomForTheUnit_ItRunsOnTheCpu) {
  const DeviceMap map = {{"0", 0}, {"1", "cpu"}};
  DeviceMapOptions options = options_with({{0, 499}, {"cpu", 100}});
  options.rates.hop_seconds = 3;
  const PredictedRun run = predicted_run(layers({400, 100}), map, options);
  EXPECT_EQ(run.units[1].runs_on, MapDevice::cpu());
  EXPECT_DOUBLE_EQ(run.seconds, 4 + 3 + 20);
  EXPECT_TRUE(run.fits);
}

TEST(PredictRun, RoomForOneCopyOnly_TheNextWaitsForTheLast) {
  const DeviceMap map = {{"0", 0}, {"1", "cpu"}, {"2", "cpu"}};
  const ModuleTree tree = layers({100, 100, 100});
  // With room for both, the second copy starts at 10 and ends at 20, otherwise at 11 and 21.
  EXPECT_DOUBLE_EQ(predicted_run(tree, map, options_with({{0, 300}, {"cpu", 200}})).seconds, 21);
  EXPECT_DOUBLE_EQ(predicted_run(tree, map, options_with({{0, 299}, {"cpu", 200}})).seconds, 22);
}

TEST(PredictRun, ThirdCopy_WaitsForTheRoomOfTheFirst) {
  DeviceMapOptions options = options_with({{0, 400}, {"cpu", 300}});
  options.rates.cpu_to_accelerator = 1000;
  options.rates.accelerator_compute = 10;
  const DeviceMap map = {{"0", "cpu"}, {"1", "cpu"}, {"2", "cpu"}, {"3", 0}};
  const PredictedRun run = predicted_run(layers({100, 100, 100, 100}), map, options);
  EXPECT_DOUBLE_EQ(run.units[0].begins, 0.1);
  EXPECT_DOUBLE_EQ(run.units[1].begins, 10.1);
  EXPECT_DOUBLE_EQ(run.units[2].begins, 20.1);
  EXPECT_DOUBLE_EQ(run.waiting_seconds, 0.1);
}

TEST(PredictRun, Disk_IsReadAndThenCopied) {
  const DeviceMap map = {{"0", 0}, {"1", "disk"}};
  const PredictedRun run = predicted_run(layers({100, 100}), map, options_with({{0, 200}}));
  EXPECT_DOUBLE_EQ(run.seconds, 50 + 10 + 1);
}

TEST(PredictRun, WithoutAccelerator_TheCpuRunsAll) {
  const DeviceMap map = {{"0", "cpu"}, {"1", "disk"}};
  const PredictedRun run =
      predicted_run(layers({100, 100}), map, options_with({{0, 50}, {"cpu", 200}}));
  EXPECT_DOUBLE_EQ(run.seconds, 50 + 20);  // read in 20 s while the first runs
  EXPECT_EQ(run.units[1].runs_on, MapDevice::cpu());
  EXPECT_FALSE(predicted_run(layers({100, 100}), map, options_with({{"cpu", 199}})).fits);
}

TEST(PredictRun, Uses_CountForRunningAndCopying) {
  DeviceMapOptions options = options_with({{0, 200}, {"cpu", 100}});
  options.uses = {{"1", 3}};
  const PredictedRun run = predicted_run(layers({100, 100}), {{"0", 0}, {"1", "cpu"}}, options);
  EXPECT_DOUBLE_EQ(run.seconds, 30 + 3);
}

TEST(PredictRun, Buffers_StayWhereTheUnitRuns) {
  ModuleTree tree = layers({100});
  const size_t layer = add_child(tree, 0, "far");
  add_bytes(tree, layer, "weight", 100);
  add_bytes(tree, layer, "mask", 50, TensorKind::kBuffer);
  DeviceMapOptions options = options_with({{0, 250}, {"cpu", 150}});
  const DeviceMap map = {{"0", 0}, {"far", "cpu"}};
  PredictedRun run = predicted_run(tree, map, options);
  EXPECT_DOUBLE_EQ(run.seconds, 10 + 1.5);
  options.offload_buffers = true;
  run = predicted_run(tree, map, options);
  EXPECT_DOUBLE_EQ(run.seconds, 15 + 1.5);
  // The buffer alone exceeds what the first layer leaves.
  options.max_memory.set(0, 149);
  EXPECT_TRUE(predicted_run(tree, map, options).fits);
  options.offload_buffers = false;
  EXPECT_FALSE(predicted_run(tree, map, options).fits);
}

TEST(PredictRun, BeyondABudget_DoesNotFit) {
  EXPECT_FALSE(predicted_run(layers({100, 300}), {{"", 0}}, options_with({{0, 399}})).fits);
}

TEST(PredictRun, DeviceThatMaxMemoryLacks_IsAnError) {
  try {
    predicted_run(layers({100}), {{"", 1}}, options_with({{0, 100}}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("the device map puts '0' on 1, which is not in max_memory"),
        std::string::npos);
  }
}

TEST(PredictRun, WrongRatesAndUses_AreErrors) {
  DeviceMapOptions options = options_with({{0, 100}});
  options.uses = {{"0", 0}};
  EXPECT_THROW(predicted_run(layers({100}), {{"", 0}}, options), Error);
  options.uses = {{"nowhere", 2}};
  EXPECT_THROW(predicted_run(layers({100}), {{"", 0}}, options), Error);
  options.uses.clear();
  options.rates.disk_to_cpu = 0;
  EXPECT_THROW(predicted_run(layers({100}), {{"", 0}}, options), Error);
}

TEST(MeasureRates, Folder_GivesRatesAboveZero) {
  const DeviceRates rates = measure_rates(COUPLER_BINARY_DIR);
  EXPECT_GT(rates.cpu_compute, 0);
  EXPECT_GT(rates.cpu_to_accelerator, 0);
  EXPECT_GT(rates.disk_to_cpu, 0);
}

TEST(MeasureRates, FolderThatIsNotThere_IsAnError) {
  try {
    measure_rates("/nowhere/at/all");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(error.what()).find("'/nowhere/at/all'"), std::string::npos);
  }
}

}  // namespace
}  // namespace coupler::placement
