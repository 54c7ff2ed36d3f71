// Simulations of a small hand-made log (two parameters of 1 MiB, one use each), and the ledger that
// they fill.
#include "estimate/simulate.h"

#include <coupler/distributed_backend.h>
#include <coupler/sharding.h>
#include <gtest/gtest.h>

#include <cmath>

#include "estimate/ledger.h"

namespace coupler::estimate {
namespace {

using Kind = StepEvent::Kind;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kElements = kMiB / 4;

StepLog two_parameters() {
  StepLog log{.mixed_precision = "no", .base_bytes = kMiB, .optimizer_factor = 2};
  LoggedModel model{.name = "Net", .modules = {{"", "Net", -1}}};
  for (const char* name : {"a", "b"}) {
    model.parameters.push_back(
        {.name = name, .sizes = {kElements}, .dtype = DB_F32, .in_memory = false});
  }
  log.models.push_back(std::move(model));
  log.events = {
      {.kind = Kind::kUsed, .index = 0},
      {.kind = Kind::kMade, .storage = 1, .bytes = 3 * kMiB},
      {.kind = Kind::kUsed, .index = 1},
      {.kind = Kind::kBackwardBegan, .bytes = 1},
      {.kind = Kind::kMade, .storage = 2, .bytes = kMiB},
      {.kind = Kind::kGradient, .index = 1, .storage = 2, .bytes = 1},
      {.kind = Kind::kMade, .storage = 3, .bytes = kMiB},
      {.kind = Kind::kGradient, .index = 0, .storage = 3, .bytes = 1},
      {.kind = Kind::kGone, .storage = 1},
      {.kind = Kind::kBackwardEnded, .bytes = 1},
      {.kind = Kind::kStepped},
      {.kind = Kind::kGone, .storage = 2},
      {.kind = Kind::kGone, .storage = 3},
  };
  return log;
}

EstimatePlan divided(int keep, bool whole_gradients) {
  EstimatePlan plan{.world_size = 2, .group_size = 2};
  for (size_t p = 0; p < 2; ++p) {
    plan.units.push_back({.name = p == 0 ? "a" : "b",
                          .parameters = {p},
                          .bounds = {{0, kElements / 2, kElements}},
                          .keep = keep,
                          .whole_gradients = whole_gradients});
  }
  return plan;
}

MemoryEstimate simulated(const EstimatePlan& plan) { return simulate(two_parameters(), {plan}); }

void expect_about(uint64_t bytes, double mebibytes) {
  EXPECT_NEAR(static_cast<double>(bytes) / static_cast<double>(kMiB), mebibytes, 0.02);
}

TEST(StepSimulation, OneProcess_KeepsGradientsAsTheyCome) {
  const MemoryEstimate estimate = simulated({});
  expect_about(estimate.of(MemoryCategory::kGradients), 2);
  expect_about(estimate.of(MemoryCategory::kOptimizer), 4);
  expect_about(estimate.of(MemoryCategory::kActivations), 4);
  EXPECT_EQ(estimate.base, kMiB);
}

TEST(StepSimulation, Replicated_HasGradientsInFlatMemory) {
  const MemoryEstimate estimate = simulated({.world_size = 2, .group_size = 2});
  expect_about(estimate.of(MemoryCategory::kGradients), 2);
  expect_about(estimate.of(MemoryCategory::kActivations), 4);
  // parameters 2 (4 while they move), gradients 2, state 4, activations 3 + 1, the process 1
  EXPECT_GE(estimate.peak, 13 * kMiB);
}

double buffers_with(const config::CommunicationConfig& communication, EstimatePlan plan) {
  plan.communication = communication;
  return static_cast<double>(simulated(plan).of(MemoryCategory::kBuffers)) /
         static_cast<double>(kMiB);
}

// Two ranks: an encoding of everything, its sums, and half an encoding from the other rank; 4 bytes
// per parameter are carried to the next step.
TEST(StepSimulation, CompressedGradients_TakeTheirCodesAndWhatIsCarried) {
  const EstimatePlan whole{.world_size = 2, .group_size = 2};
  EXPECT_NEAR(buffers_with({.gradients = "none"}, whole), 0, 0.02);
  EXPECT_NEAR(buffers_with({.gradients = "bf16"}, whole), 2.5 * 1, 0.02);
  EXPECT_NEAR(buffers_with({.gradients = "int8"}, whole), 2 + 2.5 * 0.508, 0.02);
  EXPECT_NEAR(buffers_with({.gradients = "powersgd"}, whole), 2, 0.02);
}

TEST(StepSimulation, PowerSgd_TakesNarrowMatricesAndWhatGoesWhole) {
  StepLog log = two_parameters();
  log.models[0].parameters[0].sizes = {512, 512};
  const EstimatePlan plan{.world_size = 2,
                          .group_size = 2,
                          .communication = {.gradients = "powersgd", .powersgd_rank = 16}};
  // carried 2, its factor 1/32, P and Q 1/16, the other gradient 1
  expect_about(simulate(log, {plan}).of(MemoryCategory::kBuffers), 2 + 1.0 / 32 + 1.0 / 16 + 1);
}

// For each bucket a square with its gradients and one that is carried, the factor, P and Q, and
// these as they are sent.
TEST(StepSimulation, BatchedPowerSgd_TakesSquaresOfItsBuckets) {
  config::CommunicationConfig communication{.gradients = "batched_powersgd", .powersgd_rank = 16};
  const EstimatePlan whole{.world_size = 2, .group_size = 2};
  const double side = std::sqrt(2.0 * kElements), factor = side * 16 * 4 / kMiB;
  EXPECT_NEAR(buffers_with(communication, whole), 4 + 3 * factor, 0.02);
  communication.powersgd_dtype = "bf16";
  EXPECT_NEAR(buffers_with(communication, whole), 4 + 4 * factor, 0.02);
  communication.powersgd_error_feedback = false;
  EXPECT_NEAR(buffers_with(communication, whole), 2 + 4 * factor, 0.02);
}

// For units that stay resident: the encoding of a gathered unit would reuse the unit's memory.
TEST(StepSimulation, CompressedShards_TakeTheirCodesAndWhatIsCarried) {
  const EstimatePlan plan = divided(DB_KEEP_ALWAYS, false);
  const double none = buffers_with({.gradients = "none"}, plan);
  EXPECT_NEAR(buffers_with({.gradients = "bf16"}, plan) - none, 1.5 * 0.5, 0.02);
  EXPECT_NEAR(buffers_with({.gradients = "int8"}, plan) - none, 2 + 1.5 * 0.254, 0.02);
}

TEST(StepSimulation, LocalSgd_LeavesGradientsWhereTheyAre) {
  EstimatePlan plan{.world_size = 2, .group_size = 2, .communication = {.local_sgd_steps = 4}};
  const MemoryEstimate estimate = simulated(plan);
  expect_about(estimate.of(MemoryCategory::kGradients), 2);
  expect_about(estimate.of(MemoryCategory::kBuffers), 0);
  plan.communication.local_sgd_momentum = 0.5;
  expect_about(simulated(plan).of(MemoryCategory::kBuffers), 4);
}

TEST(StepSimulation, ReplicatedWithStateOnADisk_HoldsPiecesOfItOnly) {
  const MemoryEstimate estimate = simulated(
      {.world_size = 2, .group_size = 2, .optimizer_buffers = 1, .sub_group = int64_t{kElements}});
  expect_about(estimate.of(MemoryCategory::kOptimizer), 0);
  expect_about(estimate.of(MemoryCategory::kGradients), 2);
  EXPECT_GE(estimate.of(MemoryCategory::kBuffers), 2 * kMiB);  // both tensors of a piece
  EXPECT_LE(estimate.of(MemoryCategory::kBuffers), 4 * kMiB);  // read ahead and written back
}

TEST(StepSimulation, Stage1_DividesTheOptimizerOnly) {
  const MemoryEstimate estimate = simulated(divided(DB_KEEP_ALWAYS, true));
  expect_about(estimate.of(MemoryCategory::kGradients), 2);
  expect_about(estimate.of(MemoryCategory::kOptimizer), 2);
  EXPECT_EQ(estimate.of(MemoryCategory::kUnits), 0u);
}

TEST(StepSimulation, Stage2_DividesGradientsToo) {
  const MemoryEstimate estimate = simulated(divided(DB_KEEP_ALWAYS, false));
  expect_about(estimate.of(MemoryCategory::kGradients), 1);
  expect_about(estimate.of(MemoryCategory::kOptimizer), 2);
}

TEST(StepSimulation, FullShard_GathersOneUnitAtATime) {
  const MemoryEstimate estimate = simulated(divided(DB_KEEP_USE, false));
  expect_about(estimate.of(MemoryCategory::kUnits), 1);
  expect_about(estimate.of(MemoryCategory::kGradients), 1);
  expect_about(estimate.largest_unit, 1);
  EXPECT_EQ(estimate.largest_unit_name, "a");
}

TEST(StepSimulation, LiveElements_LetMoreUnitsStay) {
  EstimatePlan plan = divided(DB_KEEP_USE, false);
  plan.live_elements = 2 * kElements;
  expect_about(simulated(plan).of(MemoryCategory::kUnits), 2);
}

TEST(StepSimulation, ShardGradOp_KeepsUnitsUntilTheirGradients) {
  expect_about(simulated(divided(DB_KEEP_STEP, false)).of(MemoryCategory::kUnits), 2);
}

TEST(StepSimulation, OnADisk_StateIsBlocksOnTheirWay) {
  EstimatePlan plan = divided(DB_KEEP_USE, false);
  plan.optimizer_buffers = plan.parameter_buffers = 1;
  const MemoryEstimate estimate = simulated(plan);
  EXPECT_EQ(estimate.of(MemoryCategory::kOptimizer), 0u);
  EXPECT_EQ(estimate.of(MemoryCategory::kGradients), 0u);
  EXPECT_GT(estimate.of(MemoryCategory::kBuffers), kMiB);
}

TEST(StepSimulation, OtherComputeType_KeepsMasterWeights) {
  EstimatePlan plan = divided(DB_KEEP_USE, false);
  for (EstimateUnit& unit : plan.units) {
    unit.compute_element = unit.reduce_element = 2;
    unit.converts = unit.reduces_converted = true;
  }
  const MemoryEstimate estimate = simulated(plan);
  expect_about(estimate.of(MemoryCategory::kMaster), 1);
  expect_about(estimate.of(MemoryCategory::kUnits), 0.5);
}

TEST(StepSimulation, Accumulation_KeepsWholeGradientsUntilTheyAreReduced) {
  StepLog log = two_parameters();
  for (StepEvent& event : log.events) {
    if (event.kind == Kind::kGradient || event.kind == Kind::kBackwardEnded) event.bytes = 0;
  }
  const MemoryEstimate estimate = simulate(log, {divided(DB_KEEP_USE, false)});
  expect_about(estimate.of(MemoryCategory::kGradients), 1 + 2);
}

TEST(MemoryLedger, FreedBlocks_StayInTheHeapUntilItIsTrimmed) {
  MemoryLedger ledger(kMiB);
  auto block = ledger.take(MemoryCategory::kParameters, 6 * kMiB);
  ledger.take(MemoryCategory::kGradients, kMiB);
  ledger.give_back(block);
  ledger.take(MemoryCategory::kBuffers, 5 * kMiB);
  EXPECT_EQ(ledger.result().peak, 8 * kMiB);
  EXPECT_EQ(ledger.result().heap, 0u);
  ledger.trim();
  ledger.take(MemoryCategory::kUnits, 3 * kMiB);
  EXPECT_EQ(ledger.result().peak, 10 * kMiB);
  EXPECT_EQ(ledger.result().of(MemoryCategory::kParameters), 6 * kMiB);
}

TEST(MemoryLedger, LargeBlocks_AreTheSystemsAgain) {
  MemoryLedger ledger(0);
  for (int i = 0; i < 2; ++i) {
    auto block = ledger.take(MemoryCategory::kUnits, 64 * kMiB);
    ledger.give_back(block);
  }
  EXPECT_EQ(ledger.result().peak, 64 * kMiB);
}

TEST(MemoryLedger, ThreadThatFetchesAhead_HasAHeapOfItsOwn) {
  MemoryLedger ledger(0);
  auto block = ledger.take(MemoryCategory::kUnits, kMiB);
  ledger.give_back(block);
  ledger.take(MemoryCategory::kUnits, kMiB, TakenFrom::kAnotherHeap);
  EXPECT_EQ(ledger.result().peak, 2 * kMiB);
  EXPECT_EQ(ledger.result().heap, kMiB);
}

TEST(MemoryLedger, ActivationsThatComeAndGo_LeaveFreeRoom) {
  MemoryLedger ledger(0);
  ledger.enter("forward");
  for (int i = 0; i < 64; ++i) {
    auto block = ledger.take(MemoryCategory::kActivations, kMiB);
    ledger.give_back(block);
  }
  const uint64_t grown = ledger.result().peak;
  EXPECT_GT(grown, 2 * kMiB);
  EXPECT_LT(grown, 5 * kMiB);
  ledger.enter("forward");
  ledger.take(MemoryCategory::kActivations, kMiB);
  EXPECT_EQ(ledger.result().peak, grown) << "the next pass finds the room";
}

}  // namespace
}  // namespace coupler::estimate
