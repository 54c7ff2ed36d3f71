// PipelineRunner: one stage of a pipeline at work: batches through its layers in the order of
// pipeline/schedule.h, and what happens where one fails. Used by the thread that trains.
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
  // stages: whose ranks are the stages, in order. Collective.
  PipelineRunner(std::shared_ptr<Communicator> stages, std::vector<PipelineLayer> layers,
                 c10::Device device);

  Communicator& stages() { return *comm_; }
  bool is_first() const { return neighbours_.is_first(); }
  bool is_last() const { return neighbours_.is_last(); }
  const std::vector<PipelineLayer>& layers() const { return layers_; }

  // The outputs of the whole batch on the last stage; elsewhere empty.
  Values infer(const BatchWork& work);
  // The loss of the whole batch on the last stage, else 0. Gradients are added to the parameters'.
  // Where that fails on one rank it fails on all, with an Error that names stage and micro-batch;
  // then the pipeline can do nothing more.
  double train(const BatchWork& work);

  // Throws where an earlier batch failed.
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
