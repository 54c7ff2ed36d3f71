#include "sharding/pipeline_schedule.h"

namespace coupler {

std::vector<PipelineStep> inference_schedule(int64_t micro_batches) {
  std::vector<PipelineStep> result;
  for (int64_t i = 0; i < micro_batches; ++i) result.push_back({StepKind::kForward, i});
  return result;
}

std::vector<PipelineStep> training_schedule(int stage, int stages, int64_t micro_batches) {
  const int64_t ahead = std::min<int64_t>(stages - 1 - stage, micro_batches);
  std::vector<PipelineStep> result = inference_schedule(ahead);
  for (int64_t i = 0; i < micro_batches; ++i) {
    if (ahead + i < micro_batches) result.push_back({StepKind::kForward, ahead + i});
    result.push_back({StepKind::kBackward, i});
  }
  return result;
}

}  // namespace coupler
