// OptimizerState: what the copies of one Optimizer handle share. Used by the thread that trains.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "optim/fused_kernel.h"
#include "optim/step_state.h"
#include "strategy/strategy.h"

namespace coupler {

class OptimizerState {
 public:
  // models: those that the optimizer's parameters belong to; they outlive this. Where a model is
  // divided, the optimizer's parameter groups hold this rank's parts afterwards, options kept; a
  // parameter that a group lists several times is there once.
  // loop outlives this too.
  OptimizerState(torch::optim::Optimizer& optimizer, std::vector<Strategy*> models,
                 const StepState& loop);

  void step();
  void zero_grad(bool set_to_none);
  torch::optim::Optimizer& torch_optimizer() { return optimizer_; }
  std::string description() const;

 private:
  bool drops_gradients() const;
  void hold_own_parts();
  void require_divisible() const;
  std::unique_ptr<FusedKernel> make_kernel();

  torch::optim::Optimizer& optimizer_;
  std::vector<Strategy*> models_;
  size_t parameters_;      // given at prepare; groups added later are not ours
  std::string not_fused_;  // why; before kernel_, whose making fills it in
  std::unique_ptr<FusedKernel> kernel_;
  const StepState& loop_;
  uint64_t stepped_scope_ = 0;  // the accumulate() scope of the latest step()
};

}  // namespace coupler
