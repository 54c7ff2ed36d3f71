// Schedules as data: each stage processes each micro-batch once and keeps no more of them than it
// must, and stages that wait for each other finish.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "sharding/pipeline_schedule.h"

namespace coupler::sharding {
namespace {

// Calls check for each pipeline shape, including one stage and fewer micro-batches than stages.
template <class Check>
void for_each_shape(const Check& check) {
  for (int stages = 1; stages <= 7; ++stages) {
    for (int64_t micro_batches = 1; micro_batches <= 17; ++micro_batches) {
      SCOPED_TRACE(::testing::Message()
                   << stages << " stages, " << micro_batches << " micro-batches");
      check(stages, micro_batches);
    }
  }
}

TEST(TrainingSchedule, AnyShape_EachForwardAndBackwardOnceAndInOrder) {
  for_each_shape([](int stages, int64_t micro_batches) {
    for (int stage = 0; stage < stages; ++stage) {
      int64_t forwards = 0, backwards = 0;
      for (const PipelineStep& step : training_schedule(stage, stages, micro_batches)) {
        int64_t& next = step.kind == StepKind::kForward ? forwards : backwards;
        EXPECT_EQ(step.micro_batch, next++);
        EXPECT_LE(backwards, forwards);
      }
      EXPECT_EQ(forwards, micro_batches);
      EXPECT_EQ(backwards, micro_batches);
    }
  });
}

TEST(TrainingSchedule, AnyShape_HoldsAtMostAsManyAsThereAreStagesToTheEnd) {
  for_each_shape([](int stages, int64_t micro_batches) {
    for (int stage = 0; stage < stages; ++stage) {
      int64_t held = 0, most = 0;
      for (const PipelineStep& step : training_schedule(stage, stages, micro_batches)) {
        held += step.kind == StepKind::kForward ? 1 : -1;
        most = std::max(most, held);
      }
      EXPECT_EQ(most, std::min<int64_t>(stages - stage, micro_batches));
    }
  });
}

// Each stage runs its own list; a step waits for its neighbor's results. Returns the number of
// rounds, or -1 if the stages deadlock.
int64_t simulate(int stages, int64_t micro_batches) {
  std::vector<std::vector<PipelineStep>> lists;
  std::vector<size_t> at(static_cast<size_t>(stages), 0);
  for (int stage = 0; stage < stages; ++stage) {
    lists.push_back(training_schedule(stage, stages, micro_batches));
  }
  std::set<std::pair<int, int64_t>> forwards, backwards;
  for (int64_t round = 0;; ++round) {
    std::vector<std::pair<int, PipelineStep>> ran;
    bool over = true;
    for (int stage = 0; stage < stages; ++stage) {
      const auto& list = lists[static_cast<size_t>(stage)];
      const size_t next = at[static_cast<size_t>(stage)];
      if (next == list.size()) continue;
      over = false;
      const PipelineStep step = list[next];
      const bool ready =
          step.kind == StepKind::kForward
              ? stage == 0 || forwards.count({stage - 1, step.micro_batch}) != 0
              : stage == stages - 1 || backwards.count({stage + 1, step.micro_batch}) != 0;
      if (ready) ran.emplace_back(stage, step);
    }
    if (over) return round;
    if (ran.empty()) return -1;
    for (const auto& [stage, step] : ran) {
      ++at[static_cast<size_t>(stage)];
      (step.kind == StepKind::kForward ? forwards : backwards).insert({stage, step.micro_batch});
    }
  }
}

TEST(TrainingSchedule, StagesWaitingForEachOther_ComeToTheEndInTheLeastTime) {
  for_each_shape([](int stages, int64_t micro_batches) {
    // Every stage's own 2 x micro_batches steps, plus the time for the first micro-batch to reach
    // the last stage and come back.
    EXPECT_EQ(simulate(stages, micro_batches), 2 * micro_batches + 2 * (stages - 1));
  });
}

TEST(InferenceSchedule, SomeMicroBatches_AllForwardInOrder) {
  const auto schedule = inference_schedule(3);
  const std::vector<PipelineStep> expected = {
      {StepKind::kForward, 0}, {StepKind::kForward, 1}, {StepKind::kForward, 2}};
  EXPECT_EQ(schedule, expected);
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
