// Optimizer: what Accelerator::prepare makes of a torch::optim optimizer. A cheap handle that may
// be copied; used by the thread that trains. The torch optimizer it was made from stays the owner
// of parameter groups and options (learning-rate schedulers keep working on it) and must outlive
// it.
#pragma once

#include <coupler/call_site.h>
#include <torch/optim/optimizer.h>

#include <memory>

namespace coupler {

class OptimizerState;

class Optimizer {
 public:
  // Made by Accelerator::prepare.
  explicit Optimizer(std::shared_ptr<OptimizerState> state) : state_(std::move(state)) {}

  // One update. SGD, Adam and AdamW run as fused kernels over the model's flat memory, with the
  // numbers of torch::optim (to 1e-6); any other optimizer runs as it is. Does nothing while
  // gradients are being accumulated.
  void step(CallSite site = {});

  // Whether the last step() changed nothing, because a gradient was infinite or NaN on some rank:
  // possible with fp16 only (docs/precision.md). The same on every rank.
  bool step_was_skipped() const;

  // Drops the gradients (or zeroes them in place), but inside accumulate() not those that a window
  // goes on accumulating: it may stand before backward or behind step.
  void zero_grad(bool set_to_none = true);

  // Of the optimizer in use; rates set here hold from the next step on.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups();
  // The optimizer given to prepare. Do not call its step(): its moments are not the ones in use.
  torch::optim::Optimizer& unwrap();
  // "fused AdamW" or the reason it runs as it is.
  std::string description() const;

 private:
  std::shared_ptr<OptimizerState> state_;
};

}  // namespace coupler
