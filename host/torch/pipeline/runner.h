// PipelineRunner: runs one stage of a pipeline: sends batches through its layers in the order of
// sharding/pipeline_schedule.h, and handles failures. Used by the training thread.
#pragma once

#include <coupler/error.h>

#include <cstdint>
#include <deque>
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

// StageBatch: one batch passing through one stage. Sends are asynchronous, and the receive of the
// next micro-batch is posted before this one is computed. Used by the training thread.

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
};

class StageBatch {
 public:
  // All arguments must outlive it.
  StageBatch(const std::vector<PipelineLayer>& layers, StageLinks& links, c10::Device device,
             const BatchWork& work);

  // Runs one step of the schedule.
  void run(const sharding::PipelineStep& step);
  // Waits until all of this stage's sends are complete.
  void finish();

  // On the last stage: the outputs of an inference, concatenated along dimension 0; the loss of the
  // batch, without scale.
  Values outputs() const;
  double loss() const;

 private:
  struct InFlight {  // between a micro-batch's forward and its backward
    Values inputs, outputs;
    at::Tensor loss;
  };
  void forward(int64_t micro_batch);
  void backward(int64_t micro_batch);
  Values chunks(const Values& batch, int64_t micro_batch) const;
  Values receive_values(int64_t micro_batch);
  void send_values(const Values& values, int64_t micro_batch);
  void expect_gradients();
  double weight(int64_t micro_batch) const;

  const std::vector<PipelineLayer>& layers_;
  StageLinks& links_;
  const c10::Device device_;
  const BatchWork& work_;
  std::deque<InFlight> in_flight_;
  std::vector<Values> results_;
  at::Tensor loss_;  // undefined: 0
};

class PipelineRunner {
 public:
  // stages: the communicator whose ranks are the stages, in order. Collective.
  PipelineRunner(std::shared_ptr<comm::Communicator> stages, std::vector<PipelineLayer> layers,
                 c10::Device device);

  comm::Communicator& stages() { return *comm_; }
  bool is_first() const { return links_.is_first(); }
  bool is_last() const { return links_.is_last(); }
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
  StageBatch run(const BatchWork& work, const std::vector<sharding::PipelineStep>& steps);
  void give_up(const std::string& why);

  const std::shared_ptr<comm::Communicator> comm_;
  const std::vector<PipelineLayer> layers_;
  const c10::Device device_;
  StageLinks links_;
  std::optional<std::string> failed_;
};

}  // namespace coupler::pipelining
