// Scheduler: the prepared form of a learning-rate schedule, Coupler's (schedule.h) or torch's,
// created by Accelerator::prepare. A cheap, copyable handle; used by the training thread. It must
// not outlive the Accelerator; the torch scheduler and the optimizer must outlive it.
//
//   for (auto& batch : batches) {
//     …
//     opt.step();
//     scheduler.step();  // no effect while accumulating, or if fp16 skipped the step
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

class SchedulerCore;

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
  explicit Scheduler(std::shared_ptr<SchedulerCore> core) : core_(std::move(core)) {}

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
  std::shared_ptr<SchedulerCore> core_;
};

}  // namespace coupler
