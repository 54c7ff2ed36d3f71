// RateDriver: sets the learning rates of an optimizer's groups, from a Coupler schedule or a torch
// scheduler. Used by the training thread.
#pragma once

#include <coupler/optimizer.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

namespace coupler::optim {

class RateDriver {
 public:
  explicit RateDriver(StepUnit unit) : unit_(unit) {}
  virtual ~RateDriver() = default;
  static std::unique_ptr<RateDriver> of(const Schedule& schedule);
  static std::unique_ptr<RateDriver> of(const TorchSchedule& schedule);

  StepUnit unit() const { return unit_; }
  virtual std::string name() const = 0;
  // The options of a Coupler schedule; defaults for a torch scheduler.
  virtual ScheduleOptions options() const { return {}; }
  virtual bool takes_metric() const { return false; }

  // Whether it belongs to this optimizer. candidates: all optimizers it may belong to.
  virtual bool is_of(torch::optim::Optimizer& optimizer,
                     const std::vector<torch::optim::Optimizer*>& candidates) const = 0;
  // Called before the first step.
  virtual void begin([[maybe_unused]] torch::optim::Optimizer& optimizer) {}
  // Advances by `count` units after `done`. metric: used only if takes_metric().
  virtual void step(torch::optim::Optimizer& optimizer, int64_t done, int64_t count,
                    double metric) = 0;

  // The part of the state that only the driver has.
  virtual void save([[maybe_unused]] Scheduler::State& state) const {}
  virtual void load(const Scheduler::State& state) = 0;

 private:
  const StepUnit unit_;
};

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer);
void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates);
// Throws Error(kInvalidArgument) naming the group if a rate is negative, infinite or NaN.
void require_rates(const std::vector<double>& rates, const std::string& whose);

}  // namespace coupler::optim
