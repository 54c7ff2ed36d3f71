// Replica: one model under the replicate strategy (data parallelism): every rank holds it whole,
// starts from rank 0's values, and averages gradients. Used by the thread that trains.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "comm/communicator.h"
#include "config/config.h"
#include "strategy/flat_parameters.h"
#include "strategy/gradient_reducer.h"

namespace coupler {

class Replica {
 public:
  // Broadcasts parameters and buffers from rank 0 (collective where comm has several ranks) and
  // moves the trainable parameters into flat memory. The module keeps its identity: every parameter
  // is the variable it was. comm is the gradients' own; null for one process.
  Replica(torch::nn::Module& module, std::shared_ptr<Communicator> comm,
          const TrainingConfig& config);

  torch::nn::Module* module() const { return module_; }
  FlatParameters& flat() { return *flat_; }
  GradientReducer* reducer() { return reducer_.get(); }  // null for one process

  // The 2-norm over all gradients of this model, then scaled so that it is at most max_norm.
  // [collective order is not touched: gradients are equal on every rank]
  double clip_grad_norm(double max_norm);

 private:
  torch::nn::Module* module_;
  std::shared_ptr<torch::nn::Module> keep_;  // so that its address stays its own; null on the stack
  std::unique_ptr<FlatParameters> flat_;
  std::shared_ptr<GradientReducer> reducer_;
};

}  // namespace coupler
