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
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <string>

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

}  // namespace coupler
