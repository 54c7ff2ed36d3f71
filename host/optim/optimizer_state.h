// OptimizerState: what the copies of one Optimizer handle share. Used by the thread that trains.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "optim/fused_kernel.h"
#include "optim/loss_scaler.h"
#include "optim/parameter_state.h"
#include "optim/step_state.h"
#include "strategy/gradient_user.h"
#include "strategy/strategy.h"

namespace coupler {

// When and how an optimizer may act; all outlive it.
struct StepRules {
  const StepState* loop = nullptr;     // where in accumulation the loop is; never null
  LossScaler* scaler = nullptr;        // with fp16
  bool in_backward = false;            // updates what backward is done with while it still runs
  std::function<void()> after_update;  // null: nothing
};

class OptimizerState final : public GradientUser {
 public:
  // models: those that the optimizer's parameters belong to; they outlive this. Where a model is
  // divided, the optimizer's parameter groups hold this rank's parts afterwards, options kept; a
  // parameter that a group lists several times is there once. Throws Error(kUnsupported) where
  // gradients are to be unscaled that are fp16 themselves, and where rules cannot be kept.
  OptimizerState(torch::optim::Optimizer& optimizer, std::vector<Strategy*> models,
                 StepRules rules);

  void step();
  void zero_grad(bool set_to_none);

  // For rules.in_backward, where it is a user of its models' gradients.
  void backward_begins() override;
  void take(FlatParameters& flat, size_t first, size_t end) override;

  torch::optim::Optimizer& torch_optimizer() { return optimizer_; }
  bool accumulating() const { return !rules_.loop->sync; }
  // Whether the last step() that was not accumulating changed nothing, for an overflow.
  bool step_was_skipped() const { return skipped_; }
  std::string description() const;

  // ---- For checkpoints ----
  // The parameters as they were given, by group, each once.
  struct Given {
    Strategy* model;   // null: of none
    size_t parameter;  // in model's
  };
  const std::vector<std::vector<Given>>& given() const { return given_; }
  // What is remembered of a variable that the optimizer holds. Throws Error(kUnsupported) where the
  // optimizer is of a kind that is not known.
  ParameterState state_of(const at::Tensor& held);
  // Makes it remember so many steps and these tensors, whose values the caller writes. Throws
  // Error(kInvalidArgument) where it has no such.
  ParameterState make_state(const at::Tensor& held, int64_t steps,
                            const std::vector<std::string>& names);
  // As if the variable had taken part in no step yet.
  void forget(const at::Tensor& held);
  // Steps that changed something, over all starts of the job.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  bool drops_gradients() const;
  void hold_own_parts();
  void require_divisible() const;
  void require_unscalable() const;
  void require_state_in_memory() const;
  void require_backward_can_update() const;
  std::unique_ptr<FusedKernel> make_kernel();

  torch::optim::Optimizer& optimizer_;
  std::vector<Strategy*> models_;
  std::vector<std::vector<Given>> given_;
  size_t parameters_;      // given at prepare; groups added later are not ours
  std::string not_fused_;  // why; before kernel_, whose making fills it in
  std::unique_ptr<FusedKernel> kernel_;
  StepRules rules_;
  uint64_t stepped_scope_ = 0;  // the accumulate() scope of the latest step()
  bool skipped_ = false;
  bool took_gradients_ = false;  // since the last step(), which ends what they began
  int64_t steps_ = 0;
};

}  // namespace coupler
