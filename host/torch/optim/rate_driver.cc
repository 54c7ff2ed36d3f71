#include "optim/rate_driver.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <cmath>

namespace coupler {
namespace {

class ScheduleDriver final : public RateDriver {
 public:
  explicit ScheduleDriver(const Schedule& schedule) : schedule_(schedule) {}

  StepUnit unit() const override { return schedule_.options().unit; }
  std::string name() const override { return schedule_.name(); }
  ScheduleOptions options() const override { return schedule_.options(); }
  bool is_of(torch::optim::Optimizer& optimizer,
             const std::vector<torch::optim::Optimizer*>&) const override {
    return &optimizer == &schedule_.optimizer();
  }
  void begin(torch::optim::Optimizer& optimizer) override {
    base_ = rates_of(optimizer);
    apply(optimizer, 0);
  }
  void step(torch::optim::Optimizer& optimizer, int64_t done, int64_t count, double) override {
    apply(optimizer, done + count);
  }
  void save(Scheduler::State& state) const override { state.base_rates = base_; }
  void load(const Scheduler::State& state) override {
    if (state.base_rates.size() != state.rates.size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the state has {} base_rates, but {} rates", state.base_rates.size(),
                              state.rates.size()));
    }
    require_rates(state.base_rates, "the state's base_rates");
    base_ = state.base_rates;
  }

 private:
  void apply(torch::optim::Optimizer& optimizer, int64_t step) {
    std::vector<double> rates;
    for (const double base : base_) rates.push_back(schedule_.rate(step, base));
    require_rates(rates, fmt::format("{} schedule at step {}", schedule_.name(), step));
    set_rates(optimizer, rates);
  }

  const Schedule schedule_;
  std::vector<double> base_;
};

}  // namespace

std::unique_ptr<RateDriver> RateDriver::of(const Schedule& schedule) {
  return std::make_unique<ScheduleDriver>(schedule);
}

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> result;
  for (const auto& group : optimizer.param_groups()) result.push_back(group.options().get_lr());
  return result;
}

void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates) {
  auto& groups = optimizer.param_groups();
  if (rates.size() != groups.size()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the scheduler has {} parameter groups, but the optimizer has {}",
                            rates.size(), groups.size()),
                {.hint = "add every parameter group before accelerator.prepare"});
  }
  for (size_t i = 0; i < rates.size(); ++i) groups[i].options().set_lr(rates[i]);
}

void require_rates(const std::vector<double>& rates, const std::string& whose) {
  for (size_t i = 0; i < rates.size(); ++i) {
    if (std::isfinite(rates[i]) && rates[i] >= 0) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the learning rate of group {} is {}, but must be finite and "
                            "at least 0",
                            whose, i, rates[i]));
  }
}

}  // namespace coupler
