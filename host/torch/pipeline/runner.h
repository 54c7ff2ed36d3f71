// PipelineRunner: runs one stage of a pipeline: sends batches through its layers in the order of
// sharding/pipeline_schedule.h, and handles failures. Used by the training thread.
#pragma once

#include <coupler/error.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "pipeline/chain.h"
#include "pipeline/neighbours.h"
#include "pipeline/stage_batch.h"

namespace coupler {

class PipelineRunner {
 public:
  // stages: the communicator whose ranks are the stages, in order. Collective.
  PipelineRunner(std::shared_ptr<Communicator> stages, std::vector<PipelineLayer> layers,
                 c10::Device device);

  Communicator& stages() { return *comm_; }
  bool is_first() const { return neighbours_.is_first(); }
  bool is_last() const { return neighbours_.is_last(); }
  const std::vector<PipelineLayer>& layers() const { return layers_; }

  // Returns the outputs of the whole batch on the last stage; empty on the others.
  Values infer(const BatchWork& work);
  // Returns the loss of the whole batch on the last stage, 0 on the others. Adds gradients to the
  // parameters'. A failure on one rank fails all ranks, with an Error that names stage and
  // micro-batch; the pipeline is then unusable.
  double train(const BatchWork& work);

  // Throws if an earlier batch failed.
  void require_whole() const;

 private:
  StageBatch run(const BatchWork& work, const std::vector<PipelineStep>& steps);
  void give_up(const std::string& why);

  const std::shared_ptr<Communicator> comm_;
  const std::vector<PipelineLayer> layers_;
  const c10::Device device_;
  Neighbours neighbours_;
  std::optional<std::string> failed_;
};

}  // namespace coupler
