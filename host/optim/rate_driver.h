// RateDriver: what moves the learning rates of an optimizer's groups: a schedule of ours or a
// scheduler of torch's. Used by the thread that trains.
#pragma once

#include <coupler/scheduler.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

namespace coupler {

class RateDriver {
 public:
  virtual ~RateDriver() = default;
  static std::unique_ptr<RateDriver> of(const Schedule& schedule);
  static std::unique_ptr<RateDriver> of(const TorchSchedule& schedule);

  virtual StepUnit unit() const = 0;
  virtual std::string name() const = 0;
  // Of ours; 0 where there is none.
  virtual ScheduleOptions options() const = 0;
  virtual bool takes_metric() const { return false; }

  // Whether it moves the rates of this optimizer; candidates: all that it may be.
  virtual bool is_of(torch::optim::Optimizer& optimizer,
                     const std::vector<torch::optim::Optimizer*>& candidates) const = 0;
  // Before the first step.
  virtual void begin(torch::optim::Optimizer& optimizer) = 0;
  // `count` more steps of the unit after `done`. metric: where it takes one.
  virtual void step(torch::optim::Optimizer& optimizer, int64_t done, int64_t count,
                    double metric) = 0;

  // What it alone knows.
  virtual void save(Scheduler::State& state) const = 0;
  virtual void load(const Scheduler::State& state) = 0;
};

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer);
void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates);
// Throws Error(kInvalidArgument) naming the group where a rate is negative, infinite or NaN.
void require_rates(const std::vector<double>& rates, const std::string& whose);

}  // namespace coupler
