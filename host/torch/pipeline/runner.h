// PipelineRunner: runs one stage of a pipeline: sends batches through its layers in the order of
// sharding/pipeline_schedule.h, and handles failures. Used by the training thread.
#pragma once

#include <coupler/error.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "pipeline/layers.h"
#include "pipeline/link.h"
#include "sharding/pipeline_schedule.h"

namespace coupler::pipelining {

// Computes the loss of one micro-batch.
using StageLoss = std::function<at::Tensor(const Values& outputs, const Values& targets)>;

// A whole batch; each tensor is [rows, …].
struct BatchWork {
  sharding::MicroBatches cut{1, 1};
  // Changes whenever types or shapes of the values passed between stages may; the same on every
  // rank.
  uint64_t signature = 0;
  bool training = false;
  Values inputs;   // read by the first stage
  Values targets;  // by the last, in training
  StageLoss loss;  // likewise
  // Whether a loss is the mean over its micro-batch's rows; otherwise a sum.
  bool mean_loss = true;
  double scale = 1;  // factor for the loss in backward
  // In training, called after each forward of a micro-batch that is not followed by its backward at
  // once; may be null.
  std::function<void()> on_forward_left;
};

class StageBatch;
// The layers of each of a stage's virtual stages.
using StageLayers = std::vector<std::vector<PipelineLayer>>;

// In a dry run, in which this stage is the only one that exists.
struct MadeUpStages {
  MakeArrival make_arrival;  // null except in a dry run
  StageLayers chain;         // the layers of all parts of the model, in order
};

class PipelineRunner {
 public:
  // stages: the communicator whose ranks are the stages, in order. Collective.
  PipelineRunner(std::shared_ptr<comm::Communicator> stages, StageLayers layers, c10::Device device,
                 MadeUpStages others = {});

  comm::Communicator& stages() { return *comm_; }
  int virtual_stages() const { return links_.virtual_stages; }
  // Whether this stage reads a batch's inputs, and its targets.
  bool is_first() const { return links_.stage == 0; }
  bool is_last() const { return links_.stage == links_.stages - 1; }

  // Returns the outputs of the whole batch on the last stage; empty on the others.
  Values infer(const BatchWork& work);
  // Returns the loss of the whole batch on the last stage, 0 on the others. Adds gradients to the
  // parameters'. A failure on one rank fails all ranks, with an Error that names stage and
  // micro-batch; the pipeline is then unusable.
  double train(const BatchWork& work);

  // Call in a dry run before infer or train of the same work: runs the layers of the stages before
  // this one to find out what they send.
  void learn_forms(const BatchWork& work);

  // Throws if an earlier batch failed.
  void require_whole() const;

 private:
  void run(StageBatch& batch);
  void give_up(const std::string& why);

  const std::shared_ptr<comm::Communicator> comm_;
  const StageLayers layers_;
  const c10::Device device_;
  const MadeUpStages others_;
  StageLinks links_;
  std::optional<std::string> failed_;
};

}  // namespace coupler::pipelining
