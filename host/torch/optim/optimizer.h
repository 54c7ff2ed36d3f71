// OptimizerState: what the copies of one Optimizer handle share. Used by the training thread.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optim/fused_kernel.h"
#include "optim/grad_scaler.h"
#include "optim/torch_state.h"
#include "strategy/gradient_sync.h"
#include "strategy/model_state.h"

namespace coupler::optim {

// The loop's position in gradient accumulation, which decides whether an optimizer's step and
// zero_grad act. Owned by the Accelerator.
struct StepState {
  bool sync = true;               // gradients are averaged in this scope; true outside one
  uint64_t scope = 0;             // the number of the accumulate() scope; 0 outside one
  bool first_of_window = true;    // no earlier batch is accumulated
  bool backward_of_only = false;  // backward has run in this scope, which has one model
  double loss_factor = 1;         // of the loss of the latest backward
};

// When and how an optimizer may act. What the pointers refer to outlives the optimizer.
struct StepRules {
  const StepState* loop = nullptr;     // the position in accumulation; never null
  GradScaler* scaler = nullptr;        // with fp16
  bool in_backward = false;            // updates parameters while backward still runs
  std::function<void()> after_update;  // null: nothing
  // What it returns lives while an optimizer without a kernel computes. Null: unused.
  std::function<std::shared_ptr<void>()> computing_scope;
  std::shared_ptr<void> compute() const { return computing_scope ? computing_scope() : nullptr; }
  // The mean of a number over ranks, collective, and whether gradients are such means now. Null:
  // one process.
  std::function<double(double)> mean_over_ranks;
  std::function<bool()> averages_gradients;
  // The prepared model of a parameter; null if it is in none.
  std::function<strategy::ModelState*(const at::Tensor&)> model_of;
};

class OptimizerState final : public strategy::GradientConsumer {
 public:
  // models: those that the optimizer's parameters belong to; they must outlive this. If a model is
  // sharded, the optimizer's parameter groups hold this rank's parts afterwards and keep their
  // options. A parameter that a group lists several times is kept once. Throws Error(kUnsupported)
  // if gradients to be unscaled are themselves fp16, or if the rules cannot be followed.
  OptimizerState(torch::optim::Optimizer& optimizer, std::vector<strategy::ModelState*> models,
                 StepRules rules);

  void step();
  at::Tensor step(const std::function<at::Tensor()>& closure);
  void zero_grad(bool set_to_none);
  void set_mode(bool training);
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  // Called with rules.in_backward only.
  void on_backward_begin() override;
  void on_gradients_ready(strategy::FlatParameters& flat, size_t first, size_t end) override;

  torch::optim::Optimizer& torch_optimizer() { return optimizer_; }
  bool accumulating() const { return !rules_.loop->sync; }
  // Whether the last step() outside accumulation was skipped because of an overflow.
  bool step_was_skipped() const { return skipped_; }
  std::string description() const;

  // ---- For checkpoints ----
  // The parameters as given by the caller, by group, each once.
  struct Given {
    strategy::ModelState* model = nullptr;  // null: in no model
    size_t parameter = 0;                   // index in the model
  };
  const std::vector<std::vector<Given>>& given() const { return given_; }
  // The state of a variable that the optimizer holds. Throws Error(kUnsupported) for an unknown
  // kind of optimizer.
  ParameterState state_of(const at::Tensor& held);
  // Sets the variable's step count and returns state tensors of these names, whose values the
  // caller writes. Throws Error(kInvalidArgument) if the optimizer's state does not have exactly
  // these.
  ParameterState make_state(const at::Tensor& held, int64_t steps,
                            const std::vector<std::string>& names);
  // Resets the variable's state as if it had not been part of any step.
  void forget(const at::Tensor& held);
  // For an optimizer whose state is of all its variables together (torch_state.h), which the three
  // functions above do not support.
  bool has_whole_state() const { return optim::has_whole_state(optimizer_); }
  std::optional<StateDict> whole_state();  // none for any other
  void load_whole_state(const StateDict& state) { set_whole_state(optimizer_, state); }
  // Steps that were not skipped, over all starts of the job.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  bool drops_gradients() const;
  void require_given_parameters() const;
  void require_no_unfrozen() const;
  void require_closure(bool given) const;
  double search_value(double loss) const;
  void updated();
  void hold_own_parts();
  void require_divisible() const;
  void require_unscalable(const at::Tensor& parameter, at::ScalarType stored) const;
  Given given_of(const at::Tensor& parameter) const;
  void require_addable(const torch::optim::OptimizerParamGroup& group) const;
  void require_no_kernel(const std::vector<strategy::ModelState*>& models) const;

  torch::optim::Optimizer& optimizer_;
  std::vector<strategy::ModelState*> models_;
  std::vector<std::vector<Given>> given_;
  size_t parameters_;      // number at prepare; step() rejects later additions
  std::string not_fused_;  // the reason; before kernel_, whose creation sets it
  std::unique_ptr<FusedKernel> kernel_;
  StepRules rules_;
  uint64_t stepped_scope_ = 0;  // the accumulate() scope of the latest step()
  bool divided_ = false;        // it holds parts of parameters
  bool skipped_ = false;
  bool took_gradients_ = false;  // since the last step()
  int64_t steps_ = 0;
};

}  // namespace coupler::optim
