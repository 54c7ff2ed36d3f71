// The state of a PipelineParallel. Used by the training thread.
#pragma once

#include <coupler/pipeline_parallel.h>

#include <memory>
#include <string>
#include <vector>

#include "accelerator/accelerator_impl.h"
#include "pipeline/runner.h"
#include "pipeline/stage.h"

namespace coupler {

struct PipelineParallel::State {
  Accelerator::Impl& impl;
  PipelineOptions options;  // micro_batches is at least 1
  std::vector<std::string> layers, split_points;
  std::shared_ptr<PipelineStage> stage;
  PipelineRunner runner;
};

}  // namespace coupler
