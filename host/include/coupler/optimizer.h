// Optimizer: the prepared form of a torch::optim optimizer,
// created by Accelerator::prepare. A cheap, copyable handle; used by the training thread. The
// original torch optimizer still owns parameter groups and options (learning-rate schedulers keep
// working on it) and must outlive the handle.
#pragma once

#include <coupler/error.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace coupler {

// What counts as one step of a schedule.
enum class StepUnit {
  kOptimizerSteps,  // a step taken by an optimizer: independent of the world size
  kProcessSteps,    // as in Accelerate: an optimizer step counts once per process
  kEpochs,          // a call of Scheduler::step, even if the last step was skipped
};

// For the functions that create a Schedule; steps are counted in `unit`.
struct ScheduleOptions {
  int64_t warmup_steps = 0;  // during which the rate rises from 0
  int64_t total_steps = 0;   // after which the rate no longer changes; not needed for constant
  StepUnit unit = StepUnit::kOptimizerSteps;  // of both
};

// Schedule: the learning rate as a function of the number of steps: constant, linear, cosine or
// polynomial, each with a warm-up, or any function. Plain data; Accelerator::prepare turns it into
// a coupler::Scheduler, which applies it.
//
//   auto schedule = coupler::cosine_schedule(optimizer, {100, 5000});
//   auto [net, opt, batches, scheduler] = accelerator.prepare(model, optimizer, loader, schedule);
//
// The formulas are those of Hugging Face transformers (src/transformers/optimization.py,
// get_*_schedule_with_warmup). With w = warmup_steps, t = total_steps and base the initial rate of
// a parameter group, all of them give base * step / max(1, w) for step < w, and then
//   constant    base
//   linear      base * max(0, (t - step) / max(1, t - w))
//   cosine      base * max(0, (1 + cos(2 pi * cycles * p)) / 2), p = (step - w) / max(1, t - w)
//   polynomial  (base - end_rate) * (1 - p)^power + end_rate
// They differ from transformers in two ways: after t, every rate stays at its value at t (a cosine
// in transformers rises again), and the polynomial uses each group's own base (transformers uses
// the optimizer's default).
class Schedule {
 public:
  // The rate after `step` steps of a group whose initial rate is `base`.
  using Rate = std::function<double(int64_t step, double base)>;

  // optimizer must outlive objects made from this. Prefer the functions below.
  Schedule(torch::optim::Optimizer& optimizer, std::string name, Rate rate,
           const ScheduleOptions& options);

  // The constructor's arguments; rate() calls the function.
  double rate(int64_t step, double base) const { return rate_(step, base); }
  const std::string& name() const { return name_; }
  const ScheduleOptions& options() const { return options_; }
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }

 private:
  torch::optim::Optimizer* optimizer_;
  std::string name_;
  Rate rate_;
  ScheduleOptions options_;
};

// All of these throw Error(kInvalidArgument) naming value and rule unless total_steps is above 0
// (constant: 0 or more), 0 <= warmup_steps <= total_steps, cycles and power are finite and above 0,
// and end_rate is finite and at least 0.
Schedule constant_schedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options = {});
Schedule linear_schedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options);
// cycles: number of cosine periods; 0.5 decays to 0 once.
Schedule cosine_schedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options,
                         double cycles = 0.5);
// end_rate must not exceed a group's own rate; prepare checks it.
Schedule polynomial_schedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options,
                             double end_rate = 1e-7, double power = 1.0);
// base * factor(step), like torch's LambdaLR.
Schedule lambda_schedule(torch::optim::Optimizer& optimizer, std::function<double(int64_t)> factor,
                         StepUnit unit = StepUnit::kOptimizerSteps);

namespace optim {
class OptimizerState;
}

class Optimizer {
 public:
  // Created by Accelerator::prepare.
  explicit Optimizer(std::shared_ptr<optim::OptimizerState> state) : state_(std::move(state)) {}

  // Performs one update. SGD, Adam and AdamW run as fused kernels over the model's flat memory and
  // match torch::optim to 1e-6, those of coupler/optimizers.h likewise if they work element by
  // element; any other optimizer runs unmodified. Does nothing while gradients
  // are being accumulated.
  void step(CallSite site = {});

  // The same for a closure that drops the gradients, computes the loss, runs accelerator.backward
  // and returns the loss: once, or for LBFGS as often as it searches. A search sees the loss as
  // backward does (divided, weighted), as the mean over ranks, so that all ranks search alike.
  // Returns the first such value. Throws Error(kUsage) inside accumulate(), Error(kUnsupported)
  // with fp16, and for a search under sharding or while gradients are not averaged. Collective.
  at::Tensor step(const std::function<at::Tensor()>& closure, CallSite site = {});

  // Whether the last step() was skipped because a gradient was infinite or NaN on some rank.
  // Happens with fp16 only (docs/precision.md). The same on every rank.
  bool step_was_skipped() const;

  // Drops the gradients (or zeroes them in place). Inside accumulate(), keeps gradients that the
  // window is still accumulating, so it may be called before backward or after step.
  void zero_grad(bool set_to_none = true);

  // For a schedule-free optimizer (coupler/optimizers.h): moves the parameters to the values to
  // evaluate and save, and back before training goes on. Does nothing for other optimizers.
  void train();
  void eval();

  // Adds a group, as torch::optim::Optimizer::add_param_group: of parameters of prepared models
  // that the optimizer did not have. Without options it gets the optimizer's defaults. Gradients
  // that they have by then count at the next step: zero_grad drops them. A coupler::Schedule takes
  // the group's rate as its initial one; torch's schedulers do not allow it. Every rank calls it.
  // Throws Error(kUsage) for a parameter that is in no prepared model or already in a group, Error
  // (kUnsupported) for one that was frozen at prepare, which no strategy averages, and for LBFGS
  // and Adagrad; the optimizer is then unchanged.
  void add_param_group(const torch::optim::OptimizerParamGroup& group, CallSite site = {});
  // Of the optimizer in use; rates set here apply from the next step on.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups();
  // The optimizer given to prepare. Do not call its step(): its moments are not the ones in use.
  torch::optim::Optimizer& unwrap();
  // "fused AdamW", or the reason why the optimizer runs unmodified.
  std::string description() const;

 private:
  std::shared_ptr<optim::OptimizerState> state_;
};

// A torch scheduler for prepare, with settings it does not expose itself. A scheduler passed to
// prepare directly counts optimizer steps, a ReduceLROnPlateauScheduler epochs.
//   coupler::TorchSchedule(plateau).of(optimizer)
class TorchSchedule {
 public:
  // The scheduler must outlive the result of prepare. Implicit, so that prepare accepts torch's
  // schedulers.
  TorchSchedule(torch::optim::LRScheduler& scheduler)  // NOLINT(google-explicit-constructor)
      : scheduler_(&scheduler) {}
  // The same for a scheduler that is stepped with a metric.
  TorchSchedule(  // NOLINT(google-explicit-constructor)
      torch::optim::ReduceLROnPlateauScheduler& scheduler)
      : plateau_(&scheduler), unit_(StepUnit::kEpochs) {}

  // The optimizer it was made for. Needed only for a ReduceLROnPlateauScheduler, and only if
  // several optimizers are prepared; otherwise it is detected.
  TorchSchedule& of(torch::optim::Optimizer& optimizer) {
    optimizer_ = &optimizer;
    return *this;
  }
  // How steps are counted: by default kOptimizerSteps, or kEpochs for a ReduceLROnPlateauScheduler.
  TorchSchedule& counting(StepUnit unit) {
    unit_ = unit;
    return *this;
  }

  // The values set above.
  torch::optim::LRScheduler* scheduler() const { return scheduler_; }  // null: use plateau()
  torch::optim::ReduceLROnPlateauScheduler* plateau() const { return plateau_; }
  torch::optim::Optimizer* optimizer() const { return optimizer_; }  // null: not set
  StepUnit unit() const { return unit_; }

 private:
  torch::optim::LRScheduler* scheduler_ = nullptr;
  torch::optim::ReduceLROnPlateauScheduler* plateau_ = nullptr;
  torch::optim::Optimizer* optimizer_ = nullptr;
  StepUnit unit_ = StepUnit::kOptimizerSteps;
};

namespace optim {
class SchedulerCore;
}

// Scheduler: the prepared form of a learning-rate schedule, Coupler's or torch's, created by
// Accelerator::prepare. A cheap, copyable handle; used by the training thread. It must not outlive
// the Accelerator; the torch scheduler and the optimizer must outlive it.
//
//   for (auto& batch : batches) {
//     …
//     opt.step();
//     scheduler.step();  // no effect while accumulating, or if fp16 skipped the step
//     opt.zero_grad();
//   }
class Scheduler {
 public:
  // The state saved in a checkpoint.
  struct State {
    int64_t steps = 0;               // in the schedule's unit
    std::vector<double> rates;       // current rates, by parameter group
    std::vector<double> base_rates;  // initial rates, by parameter group; empty for torch's
    // Of a ReduceLROnPlateauScheduler:
    double best = 0;
    int64_t bad_epochs = 0;
    int64_t cooldown = 0;
  };

  // Created by Accelerator::prepare.
  explicit Scheduler(std::shared_ptr<optim::SchedulerCore> core) : core_(std::move(core)) {}

  // Advances the learning rates by one step of the unit. Does nothing while gradients are being
  // accumulated or, unless the unit is epochs, if the optimizer's last step was skipped. Throws
  // Error if a rate would be negative, infinite or NaN.
  void step();
  // The same for a ReduceLROnPlateauScheduler, which uses the mean of metric over ranks, so that
  // all ranks decide alike. Collective.
  void step(double metric);

  int64_t steps() const;              // counted so far
  std::vector<double> rates() const;  // by parameter group
  // "linear: counts optimizer steps, warm-up until 100, end at 5000".
  std::string description() const;

  // For a checkpoint.
  State state() const;
  // Throws Error(kInvalidArgument) if the state is invalid or has other parameter groups.
  void load_state(const State& state);

 private:
  std::shared_ptr<optim::SchedulerCore> core_;
};

}  // namespace coupler
