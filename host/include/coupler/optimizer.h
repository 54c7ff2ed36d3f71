// Optimizer: the prepared form of a torch::optim optimizer, created by Accelerator::prepare. A
// cheap, copyable handle; used by the training thread. The original torch optimizer still owns
// parameter groups and options (learning-rate schedulers keep working on it) and must outlive the
// handle.
#pragma once

#include <coupler/call_site.h>
#include <torch/optim/optimizer.h>

#include <memory>

namespace coupler {

class OptimizerState;

class Optimizer {
 public:
  // Created by Accelerator::prepare.
  explicit Optimizer(std::shared_ptr<OptimizerState> state) : state_(std::move(state)) {}

  // Performs one update. SGD, Adam and AdamW run as fused kernels over the model's flat memory and
  // match torch::optim to 1e-6; any other optimizer runs unmodified. Does nothing while gradients
  // are being accumulated.
  void step(CallSite site = {});

  // Whether the last step() was skipped because a gradient was infinite or NaN on some rank.
  // Happens with fp16 only (docs/precision.md). The same on every rank.
  bool step_was_skipped() const;

  // Drops the gradients (or zeroes them in place). Inside accumulate(), keeps gradients that the
  // window is still accumulating, so it may be called before backward or after step.
  void zero_grad(bool set_to_none = true);

  // Of the optimizer in use; rates set here apply from the next step on.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups();
  // The optimizer given to prepare. Do not call its step(): its moments are not the ones in use.
  torch::optim::Optimizer& unwrap();
  // "fused AdamW", or the reason why the optimizer runs unmodified.
  std::string description() const;

 private:
  std::shared_ptr<OptimizerState> state_;
};

}  // namespace coupler
