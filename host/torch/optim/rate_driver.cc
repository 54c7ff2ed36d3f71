#include "optim/rate_driver.h"

#include <c10/util/Type.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <cmath>
#include <typeinfo>

namespace coupler::optim {
namespace {

class ScheduleDriver final : public RateDriver {
 public:
  explicit ScheduleDriver(const Schedule& schedule)
      : RateDriver(schedule.options().unit), schedule_(schedule) {}

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
    // Groups that were added since.
    for (size_t i = base_.size(); i < optimizer.param_groups().size(); ++i) {
      base_.push_back(optimizer.param_groups()[i].options().get_lr());
    }
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

// The schedulers of torch::optim as RateDrivers. Their public interface hides their optimizer and
// the state that a checkpoint needs; all access to hidden members is in this file.

namespace {

using torch::optim::LRScheduler;
using Plateau = torch::optim::ReduceLROnPlateauScheduler;

// Accesses protected members, which a derived class may name.
struct OpenScheduler : LRScheduler {
  static std::vector<double> current_rates(const LRScheduler& scheduler) {
    return (scheduler.*(&OpenScheduler::get_current_lrs))();
  }
  static unsigned& step_count(LRScheduler& scheduler) {
    return scheduler.*(&OpenScheduler::step_count_);
  }
};

// Accesses private members, which an explicit instantiation may name.
template <auto kMember, class Name>
struct Opened {
  friend auto member_of(Name) { return kMember; }
};
struct Best {};
struct BadEpochs {};
struct Cooldown {};
auto member_of(Best);
auto member_of(BadEpochs);
auto member_of(Cooldown);
template struct Opened<&Plateau::best, Best>;
template struct Opened<&Plateau::num_bad_epochs, BadEpochs>;
template struct Opened<&Plateau::cooldown_counter, Cooldown>;

class TorchDriver final : public RateDriver {
 public:
  // is_of() can detect the scheduler's optimizer, so it is not passed.
  TorchDriver(LRScheduler& scheduler, StepUnit unit) : RateDriver(unit), scheduler_(scheduler) {}

  std::string name() const override { return c10::demangle(typeid(scheduler_).name()); }
  // The scheduler reports its optimizer's rates, so a rate changed here must show up there.
  bool is_of(torch::optim::Optimizer& optimizer,
             const std::vector<torch::optim::Optimizer*>&) const override {
    if (optimizer.param_groups().empty()) return false;
    torch::optim::OptimizerOptions& options = optimizer.param_groups()[0].options();
    const double before = options.get_lr();
    const double mark = before == 0.625 ? 0.375 : 0.625;
    const auto first = [&] {
      const std::vector<double> rates = OpenScheduler::current_rates(scheduler_);
      return rates.empty() ? 0 : rates[0];
    };
    const double seen_before = first();
    options.set_lr(mark);
    const double seen = first();
    options.set_lr(before);
    return seen == mark && seen_before == before;
  }
  void step(torch::optim::Optimizer& optimizer, int64_t, int64_t count, double) override {
    for (int64_t i = 0; i < count; ++i) scheduler_.step();
    require_rates(rates_of(optimizer), name());
  }
  void load(const Scheduler::State& state) override {
    OpenScheduler::step_count(scheduler_) = static_cast<unsigned>(state.steps);
  }

 private:
  LRScheduler& scheduler_;
};

class PlateauDriver final : public RateDriver {
 public:
  PlateauDriver(Plateau& scheduler, torch::optim::Optimizer* optimizer, StepUnit unit)
      : RateDriver(unit), scheduler_(scheduler), optimizer_(optimizer) {
    if (unit == StepUnit::kProcessSteps) {
      throw Error(ErrorCode::kInvalidArgument,
                  "ReduceLROnPlateauScheduler cannot count process steps: it would see one metric "
                  "several times",
                  {.hint = "let it count epochs or optimizer steps"});
    }
  }

  std::string name() const override { return "torch::optim::ReduceLROnPlateauScheduler"; }
  bool takes_metric() const override { return true; }
  bool is_of(torch::optim::Optimizer& optimizer,
             const std::vector<torch::optim::Optimizer*>& candidates) const override {
    if (optimizer_ != nullptr) return optimizer_ == &optimizer;
    if (candidates.size() == 1) return true;
    throw Error(ErrorCode::kUsage,
                fmt::format("a ReduceLROnPlateauScheduler does not say which optimizer it belongs "
                            "to, and {} optimizers are prepared",
                            candidates.size()),
                {.hint = "prepare coupler::TorchSchedule(scheduler).of(optimizer) instead"});
  }
  void step(torch::optim::Optimizer&, int64_t, int64_t, double metric) override {
    scheduler_.step(static_cast<float>(metric));
  }
  void save(Scheduler::State& state) const override {
    state.best = scheduler_.*member_of(Best());
    state.bad_epochs = scheduler_.*member_of(BadEpochs());
    state.cooldown = scheduler_.*member_of(Cooldown());
  }
  void load(const Scheduler::State& state) override {
    scheduler_.*member_of(Best()) = static_cast<float>(state.best);
    scheduler_.*member_of(BadEpochs()) = static_cast<int>(state.bad_epochs);
    scheduler_.*member_of(Cooldown()) = static_cast<int>(state.cooldown);
  }

 private:
  Plateau& scheduler_;
  torch::optim::Optimizer* const optimizer_;
};

}  // namespace

std::unique_ptr<RateDriver> RateDriver::of(const TorchSchedule& schedule) {
  if (schedule.scheduler() != nullptr) {
    return std::make_unique<TorchDriver>(*schedule.scheduler(), schedule.unit());
  }
  return std::make_unique<PlateauDriver>(*schedule.plateau(), schedule.optimizer(),
                                         schedule.unit());
}

}  // namespace coupler::optim
