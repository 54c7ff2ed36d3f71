// SchedulerCore: what the copies of one Scheduler handle share. Used by the training thread.
#pragma once

#include <coupler/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "optim/optimizer.h"
#include "optim/rate_driver.h"

namespace coupler::optim {

class SchedulerCore {
 public:
  SchedulerCore(std::unique_ptr<RateDriver> driver, std::shared_ptr<comm::Communicator> comm)
      : driver_(std::move(driver)), comm_(std::move(comm)) {}

  // Finds the optimizer among the prepared ones and sets its first rates. Throws Error(kUsage) if
  // it is not there.
  void bind(const std::vector<std::shared_ptr<OptimizerState>>& prepared);

  void step();
  void step(double metric);
  int64_t steps() const { return steps_; }
  std::vector<double> rates() const;
  std::string description() const;
  Scheduler::State state() const;
  void load_state(const Scheduler::State& state);

 private:
  bool is_to_step() const;
  void advance(double metric);

  std::unique_ptr<RateDriver> driver_;
  std::shared_ptr<comm::Communicator> comm_;
  std::shared_ptr<OptimizerState> optimizer_;
  int64_t steps_ = 0;
};

}  // namespace coupler::optim
