// StageBatch: one batch passing through one stage. Sends are asynchronous, and the receive of the
// next micro-batch is posted before this one is computed. Used by the training thread.
#pragma once

#include <coupler/error.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "pipeline/chain.h"
#include "pipeline/neighbours.h"
#include "sharding/pipeline_schedule.h"

namespace coupler {

// Computes the loss of one micro-batch.
using StageLoss = std::function<at::Tensor(const Values& outputs, const Values& targets)>;

// A whole batch; each tensor is [rows, …].
struct BatchWork {
  MicroBatches cut{1, 1};
  // Changes whenever the forms of the values passed between stages may; the same on every rank.
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
  StageBatch(const std::vector<PipelineLayer>& layers, Neighbours& neighbours, c10::Device device,
             const BatchWork& work);

  // Runs one step of the schedule.
  void run(const PipelineStep& step);
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
  Neighbours& neighbours_;
  const c10::Device device_;
  const BatchWork& work_;
  std::deque<InFlight> in_flight_;
  std::vector<Values> results_;
  at::Tensor loss_;  // undefined: 0
};

}  // namespace coupler
