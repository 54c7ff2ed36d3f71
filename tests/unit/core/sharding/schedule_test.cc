// Schedules as data: each stage processes each micro-batch once and keeps no more of them than it
// must, and stages that wait for each other finish.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "sharding/pipeline_schedule.h"

namespace coupler::sharding {
namespace {

struct PipelineShape {
  int stages;
  int64_t micro_batches;
  int virtual_stages = 1;
};

// Calls check for each pipeline shape, including one stage and fewer micro-batches than stages;
// with virtual stages, in multiples of the stages.
template <class Check>
void for_each_shape(const Check& check) {
  for (int stages = 1; stages <= 7; ++stages) {
    for (int virtual_stages = 1; virtual_stages <= 4; ++virtual_stages) {
      for (int64_t micro_batches = 1; micro_batches <= 17; ++micro_batches) {
        if (virtual_stages > 1 && micro_batches % stages != 0) continue;
        SCOPED_TRACE(::testing::Message()
                     << stages << " stages, " << micro_batches << " micro-batches, "
                     << virtual_stages << " virtual stages");
        check(PipelineShape{stages, micro_batches, virtual_stages});
      }
    }
  }
}

std::vector<PipelineStep> schedule_of(const PipelineShape& shape, int stage) {
  return training_schedule(stage, shape.stages, shape.micro_batches, shape.virtual_stages);
}

TEST(TrainingSchedule, AnyShape_EachForwardAndBackwardOnceAndInOrder) {
  for_each_shape([](const PipelineShape& shape) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      std::map<int, int64_t> forwards, backwards;  // by virtual stage
      for (const PipelineStep& step : schedule_of(shape, stage)) {
        EXPECT_GE(step.virtual_stage, 0);
        EXPECT_LT(step.virtual_stage, shape.virtual_stages);
        auto& next = step.kind == StepKind::kForward ? forwards : backwards;
        EXPECT_EQ(step.micro_batch, next[step.virtual_stage]++);
        EXPECT_LE(backwards[step.virtual_stage], forwards[step.virtual_stage]);
      }
      for (int place = 0; place < shape.virtual_stages; ++place) {
        EXPECT_EQ(forwards[place], shape.micro_batches);
        EXPECT_EQ(backwards[place], shape.micro_batches);
      }
    }
  });
}

TEST(TrainingSchedule, AnyShape_HoldsAtMostWhatMustBeAhead) {
  for_each_shape([](const PipelineShape& shape) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      int64_t held = 0, most = 0;
      for (const PipelineStep& step : schedule_of(shape, stage)) {
        held += step.kind == StepKind::kForward ? 1 : -1;
        most = std::max(most, held);
      }
      const int after = shape.stages - 1 - stage;
      const int ahead =
          shape.virtual_stages == 1 ? after : 2 * after + (shape.virtual_stages - 1) * shape.stages;
      EXPECT_EQ(most, std::min<int64_t>(ahead + 1, shape.micro_batches * shape.virtual_stages));
    }
  });
}

// Sends arrive in the order in which the next stage takes them, since links keep order.
TEST(TrainingSchedule, AnyShape_NeighborsTakeMicroBatchesInTheSameOrder) {
  using Passed = std::vector<std::pair<int, int64_t>>;  // the part that takes it, the micro-batch
  for_each_shape([](const PipelineShape& shape) {
    const int parts = shape.stages * shape.virtual_stages;
    for (const StepKind kind : {StepKind::kForward, StepKind::kBackward}) {
      const int on = kind == StepKind::kForward ? 1 : -1;
      for (int stage = 0; stage < shape.stages; ++stage) {
        const int to = (stage + on + shape.stages) % shape.stages;
        Passed sent, taken;
        for (const PipelineStep& step : schedule_of(shape, stage)) {
          const int target = step.virtual_stage * shape.stages + stage + on;
          if (step.kind == kind && target >= 0 && target < parts)
            sent.emplace_back(target, step.micro_batch);
        }
        for (const PipelineStep& step : schedule_of(shape, to)) {
          const int part = step.virtual_stage * shape.stages + to;
          if (step.kind == kind && part - on >= 0 && part - on < parts)
            taken.emplace_back(part, step.micro_batch);
        }
        EXPECT_EQ(sent, taken);
      }
    }
  });
}

// Each stage runs its own list; a step waits for its neighbor's results. Returns the number of
// rounds, or -1 if the stages deadlock.
int64_t simulate(const PipelineShape& shape) {
  const int stages = shape.stages, last = stages * shape.virtual_stages - 1;
  std::vector<std::vector<PipelineStep>> lists;
  std::vector<size_t> at(static_cast<size_t>(stages), 0);
  for (int stage = 0; stage < stages; ++stage) lists.push_back(schedule_of(shape, stage));
  std::set<std::pair<int, int64_t>> forwards, backwards;  // the parts that have run
  for (int64_t round = 0;; ++round) {
    std::vector<std::pair<int, PipelineStep>> ran;
    bool over = true;
    for (int stage = 0; stage < stages; ++stage) {
      const auto& list = lists[static_cast<size_t>(stage)];
      const size_t next = at[static_cast<size_t>(stage)];
      if (next == list.size()) continue;
      over = false;
      const PipelineStep step = list[next];
      const int part = step.virtual_stage * stages + stage;
      const bool ready = step.kind == StepKind::kForward
                             ? part == 0 || forwards.count({part - 1, step.micro_batch}) != 0
                             : part == last || backwards.count({part + 1, step.micro_batch}) != 0;
      if (ready) ran.emplace_back(stage, step);
    }
    if (over) return round;
    if (ran.empty()) return -1;
    for (const auto& [stage, step] : ran) {
      ++at[static_cast<size_t>(stage)];
      (step.kind == StepKind::kForward ? forwards : backwards)
          .insert({step.virtual_stage * stages + stage, step.micro_batch});
    }
  }
}

// Every stage's own steps, plus the time for the first micro-batch to reach the last stage and come
// back. With virtual stages a step is shorter, and so is that time.
TEST(TrainingSchedule, StagesWaitingForEachOther_ComeToTheEndInTheLeastTime) {
  for_each_shape([](const PipelineShape& shape) {
    EXPECT_EQ(simulate(shape),
              2 * shape.micro_batches * shape.virtual_stages + 2 * (shape.stages - 1));
  });
}

TEST(TrainingSchedule, IdleShare_IsWhatTheSimulationWaits) {
  EXPECT_DOUBLE_EQ(idle_share(1, 4, 1), 0);
  EXPECT_DOUBLE_EQ(idle_share(2, 2, 1), 1.0 / 3);
  EXPECT_DOUBLE_EQ(idle_share(4, 8, 2), 3.0 / 19);
  for_each_shape([](const PipelineShape& shape) {
    const double works = 2.0 * static_cast<double>(shape.micro_batches) * shape.virtual_stages;
    EXPECT_NEAR(idle_share(shape.stages, shape.micro_batches, shape.virtual_stages),
                1 - works / static_cast<double>(simulate(shape)), 1e-12);
  });
}

TEST(InferenceSchedule, SomeMicroBatches_AllForwardInOrder) {
  const auto schedule = inference_schedule(2, 3);
  const std::vector<PipelineStep> expected = {
      {StepKind::kForward, 0}, {StepKind::kForward, 1}, {StepKind::kForward, 2}};
  EXPECT_EQ(schedule, expected);
}

TEST(InferenceSchedule, VirtualStages_EachGroupPassesThroughAllOfThem) {
  const auto schedule = inference_schedule(2, 4, 2);
  std::vector<std::pair<int, int64_t>> order;
  for (const PipelineStep& step : schedule)
    order.emplace_back(step.virtual_stage, step.micro_batch);
  const std::vector<std::pair<int, int64_t>> expected = {{0, 0}, {0, 1}, {1, 0}, {1, 1},
                                                         {0, 2}, {0, 3}, {1, 2}, {1, 3}};
  EXPECT_EQ(order, expected);
}

TEST(MicroBatches, RowsThatDoNotDivide_TheFirstOnesHaveOneMore) {
  const MicroBatches cut(10, 4);
  const std::vector<int64_t> expected = {3, 3, 2, 2};
  int64_t begin = 0;
  for (int64_t i = 0; i < cut.count(); ++i) {
    EXPECT_EQ(cut.begin(i), begin);
    EXPECT_EQ(cut.size(i), expected[static_cast<size_t>(i)]);
    begin += cut.size(i);
  }
  EXPECT_EQ(begin, 10);
}

}  // namespace
}  // namespace coupler::sharding
