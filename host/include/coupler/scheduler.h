// Scheduler: what Accelerator::prepare makes of a learning-rate schedule, of ours (schedule.h) or
// of torch's. A cheap handle that may be copied; used by the thread that trains. It must not
// outlive the Accelerator; a scheduler of torch's and the optimizer must outlive it.
//
//   for (auto& batch : batches) {
//     …
//     opt.step();
//     scheduler.step();  // nothing while accumulating, nor where fp16 skipped the step
//     opt.zero_grad();
//   }
#pragma once

#include <coupler/schedule.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace coupler {

// A scheduler of torch's for prepare, with what it does not say itself. A scheduler given to
// prepare as it is counts optimizer steps, a ReduceLROnPlateauScheduler epochs.
//   coupler::TorchSchedule(plateau).of(optimizer)
class TorchSchedule {
 public:
  // The scheduler outlives what prepare makes of it. Implicit, so that prepare takes torch's own.
  TorchSchedule(torch::optim::LRScheduler& scheduler)  // NOLINT(google-explicit-constructor)
      : scheduler_(&scheduler) {}
  // The same; it is stepped with a metric.
  TorchSchedule(  // NOLINT(google-explicit-constructor)
      torch::optim::ReduceLROnPlateauScheduler& scheduler)
      : plateau_(&scheduler), unit_(StepUnit::kEpochs) {}

  // The optimizer it was made for. Needed for a ReduceLROnPlateauScheduler only, and only where
  // several optimizers are prepared: of the others it is found out.
  TorchSchedule& of(torch::optim::Optimizer& optimizer) {
    optimizer_ = &optimizer;
    return *this;
  }
  // How steps are counted, kOptimizerSteps by default, kEpochs for a ReduceLROnPlateauScheduler.
  TorchSchedule& counting(StepUnit unit) {
    unit_ = unit;
    return *this;
  }

  // What it was made of and told.
  torch::optim::LRScheduler* scheduler() const { return scheduler_; }  // null: plateau()
  torch::optim::ReduceLROnPlateauScheduler* plateau() const { return plateau_; }
  torch::optim::Optimizer* optimizer() const { return optimizer_; }  // null: not said
  StepUnit unit() const { return unit_; }

 private:
  torch::optim::LRScheduler* scheduler_ = nullptr;
  torch::optim::ReduceLROnPlateauScheduler* plateau_ = nullptr;
  torch::optim::Optimizer* optimizer_ = nullptr;
  StepUnit unit_ = StepUnit::kOptimizerSteps;
};

class SchedulerCore;

class Scheduler {
 public:
  // What a checkpoint holds.
  struct State {
    int64_t steps = 0;               // in the schedule's unit
    std::vector<double> rates;       // by parameter group: now
    std::vector<double> base_rates;  // by parameter group: at first; empty for torch's
    // Of a ReduceLROnPlateauScheduler.
    double best = 0;
    int64_t bad_epochs = 0;
    int64_t cooldown = 0;
  };

  // Made by Accelerator::prepare.
  explicit Scheduler(std::shared_ptr<SchedulerCore> core) : core_(std::move(core)) {}

  // Moves the learning rates by one step of the unit. Does nothing while gradients are being
  // accumulated, and nothing where the optimizer's last step was skipped, unless the unit is
  // epochs. Throws Error where a rate would be negative, infinite or NaN.
  void step();
  // The same for a ReduceLROnPlateauScheduler, which decides by the mean of metric over ranks, so
  // that all decide alike. Collective.
  void step(double metric);

  int64_t steps() const;              // counted so far
  std::vector<double> rates() const;  // by parameter group
  // "linear: counts optimizer steps, warm-up until 100, end at 5000".
  std::string description() const;

  // For a checkpoint.
  State state() const;
  // Throws Error(kInvalidArgument) where the state is of other groups, or no state at all.
  void load_state(const State& state);

 private:
  std::shared_ptr<SchedulerCore> core_;
};

}  // namespace coupler
