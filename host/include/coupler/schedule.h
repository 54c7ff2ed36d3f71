// Schedule: how a learning rate changes with the number of steps: constant, linear, cosine or
// polynomial, each with a warm-up, or any function. Plain data; Accelerator::prepare makes a
// coupler::Scheduler of it, which acts.
//
//   auto schedule = coupler::cosine_schedule(optimizer, {100, 5000});
//   auto [net, opt, batches, scheduler] = accelerator.prepare(model, optimizer, loader, schedule);
//
// The formulas are those of Hugging Face transformers (src/transformers/optimization.py,
// get_*_schedule_with_warmup). With w = warmup_steps, t = total_steps and base the rate that a
// parameter group was made with, all of them give base * step / max(1, w) for step < w, and then
//   constant    base
//   linear      base * max(0, (t - step) / max(1, t - w))
//   cosine      base * max(0, (1 + cos(2 pi * cycles * p)) / 2), p = (step - w) / max(1, t - w)
//   polynomial  (base - end_rate) * (1 - p)^power + end_rate
// They differ from transformers in two things: after t every rate stays what it was at t (there a
// cosine rises again), and each group has its own base in the polynomial (there the optimizer's
// default).
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <string>

namespace coupler {

// What one step of a schedule is.
enum class StepUnit {
  kOptimizerSteps,  // a step that an optimizer took: the same numbers whatever the world
  kProcessSteps,    // as Accelerate counts: an optimizer's step counts once for each process
  kEpochs,          // a call of Scheduler::step, whether or not the last step was skipped
};

// For the functions that make a Schedule; steps are counted in `unit`.
struct ScheduleOptions {
  int64_t warmup_steps = 0;  // in which the rate rises from 0
  int64_t total_steps = 0;   // where the rate has come to its end; a constant one needs none
  StepUnit unit = StepUnit::kOptimizerSteps;  // of both
};

class Schedule {
 public:
  // The rate after so many steps of a group whose rate was `base` at first.
  using Rate = std::function<double(int64_t step, double base)>;

  // optimizer must outlive what is made of this. The functions below are the usual way.
  Schedule(torch::optim::Optimizer& optimizer, std::string name, Rate rate,
           const ScheduleOptions& options);

  // What the constructor was given; rate: the function called.
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

// All of these throw Error(kInvalidArgument) naming value and rule: total_steps above 0 (constant:
// 0 or more), 0 <= warmup_steps <= total_steps, cycles and power finite and above 0, end_rate
// finite and at least 0.
Schedule constant_schedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options = {});
Schedule linear_schedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options);
// cycles: waves of the cosine; a half comes down to 0 once.
Schedule cosine_schedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options,
                         double cycles = 0.5);
// end_rate must not be above a group's own rate; prepare checks it.
Schedule polynomial_schedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options,
                             double end_rate = 1e-7, double power = 1.0);
// base * factor(step), as torch's LambdaLR.
Schedule lambda_schedule(torch::optim::Optimizer& optimizer, std::function<double(int64_t)> factor,
                         StepUnit unit = StepUnit::kOptimizerSteps);

}  // namespace coupler
