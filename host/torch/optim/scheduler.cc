#include "optim/scheduler.h"

#include <coupler/error.h>
#include <coupler/optimizer.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "tensors/tensor_ops.h"

namespace coupler::optim {
namespace {

const char* unit_name(StepUnit unit) {
  switch (unit) {
    case StepUnit::kOptimizerSteps:
      return "optimizer steps";
    case StepUnit::kProcessSteps:
      return "process steps";
    case StepUnit::kEpochs:
      return "epochs";
  }
  return "";
}

}  // namespace

void SchedulerCore::bind(const std::vector<std::shared_ptr<OptimizerState>>& prepared) {
  std::vector<torch::optim::Optimizer*> candidates;
  for (const auto& state : prepared) candidates.push_back(&state->torch_optimizer());
  const auto found = std::find_if(candidates.begin(), candidates.end(), [&](auto* optimizer) {
    return driver_->is_of(*optimizer, candidates);
  });
  if (found == candidates.end()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the scheduler '{}' has no optimizer: the one it was made for was not "
                            "prepared",
                            driver_->name()),
                {.subject = driver_->name(),
                 .hint = "pass the optimizer to the same or an earlier accelerator.prepare"});
  }
  optimizer_ = prepared[static_cast<size_t>(found - candidates.begin())];
  require_rates(rates(), "the optimizer");
  driver_->begin(optimizer_->torch_optimizer());
  if (comm_->rank() == 0 && log_enabled(LogLevel::kInfo, "optim")) {
    log(LogLevel::kInfo, "optim", "scheduler " + description());
  }
}

bool SchedulerCore::is_to_step() const {
  if (optimizer_->accumulating()) return false;
  return driver_->unit() == StepUnit::kEpochs || !optimizer_->step_was_skipped();
}

void SchedulerCore::advance(double metric) {
  const int64_t count = driver_->unit() == StepUnit::kProcessSteps ? comm_->size() : 1;
  driver_->step(optimizer_->torch_optimizer(), steps_, count, metric);
  steps_ += count;
}

void SchedulerCore::step() {
  if (driver_->takes_metric()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} needs a metric", driver_->name()),
                {.subject = driver_->name(), .hint = "call step(metric)"});
  }
  if (is_to_step()) advance(0);
}

void SchedulerCore::step(double metric) {
  if (!driver_->takes_metric()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} takes no metric", driver_->name()),
                {.subject = driver_->name(), .hint = "call step()"});
  }
  if (!is_to_step()) return;
  advance(tensors::all_reduce_number(*comm_, metric, DB_SUM) / comm_->size());
}

std::vector<double> SchedulerCore::rates() const { return rates_of(optimizer_->torch_optimizer()); }

std::string SchedulerCore::description() const {
  const ScheduleOptions options = driver_->options();
  std::string text = fmt::format("{}: counts {}", driver_->name(), unit_name(driver_->unit()));
  if (options.warmup_steps > 0) text += fmt::format(", warm-up until {}", options.warmup_steps);
  if (options.total_steps == 0) return text + ", no end";
  text += fmt::format(", end at {}", options.total_steps);
  const int world_size = comm_->size();
  if (driver_->unit() == StepUnit::kProcessSteps && world_size > 1) {
    text += fmt::format(", reached after {} optimizer steps of {} processes",
                        (options.total_steps + world_size - 1) / world_size, world_size);
  }
  return text;
}

Scheduler::State SchedulerCore::state() const {
  Scheduler::State result;
  result.steps = steps_;
  result.rates = rates();
  driver_->save(result);
  return result;
}

void SchedulerCore::load_state(const Scheduler::State& state) {
  if (state.steps < 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the scheduler's state has {} steps, but must have 0 or more", state.steps));
  }
  const size_t groups = rates().size();
  if (state.rates.size() != groups) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the scheduler's state has {} parameter groups, but the optimizer has {}",
                    state.rates.size(), groups));
  }
  require_rates(state.rates, "the scheduler's state");
  driver_->load(state);
  set_rates(optimizer_->torch_optimizer(), state.rates);
  steps_ = state.steps;
}

}  // namespace coupler::optim

namespace coupler {

void Scheduler::step() { core_->step(); }
void Scheduler::step(double metric) { core_->step(metric); }
int64_t Scheduler::steps() const { return core_->steps(); }
std::vector<double> Scheduler::rates() const { return core_->rates(); }
std::string Scheduler::description() const { return core_->description(); }
Scheduler::State Scheduler::state() const { return core_->state(); }
void Scheduler::load_state(const State& state) { core_->load_state(state); }

namespace {

[[noreturn]] void fail(const std::string& schedule, const std::string& what,
                       const std::string& hint = "") {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}_schedule: {}", schedule, what),
              {.subject = schedule, .hint = hint});
}

void check_steps(const std::string& name, const ScheduleOptions& options, bool needs_total) {
  if (options.warmup_steps < 0) {
    fail(name, fmt::format("warmup_steps is {}, but must be 0 or more", options.warmup_steps));
  }
  if (options.total_steps < (needs_total ? 1 : 0)) {
    fail(name,
         fmt::format("total_steps is {}, but must be {}", options.total_steps,
                     needs_total ? "above 0" : "0 (no end) or more"),
         needs_total ? "give steps per epoch times epochs, in the unit that the schedule counts"
                     : "");
  }
  if (options.total_steps > 0 && options.warmup_steps > options.total_steps) {
    fail(name, fmt::format("warmup_steps is {}, but must be at most total_steps, which is {}",
                           options.warmup_steps, options.total_steps));
  }
}

void check_positive(const std::string& name, const char* what, double value) {
  if (std::isfinite(value) && value > 0) return;
  fail(name, fmt::format("{} is {}, but must be finite and above 0", what, value));
}

// Rises from 0 to 1 after the warm-up; 1 from total_steps on.
double progress_of(int64_t step, const ScheduleOptions& options) {
  const int64_t length = std::max<int64_t>(1, options.total_steps - options.warmup_steps);
  const int64_t done = std::min(step, options.total_steps) - options.warmup_steps;
  return static_cast<double>(done) / static_cast<double>(length);
}

// after: the rate after the warm-up.
Schedule::Rate with_warmup(const ScheduleOptions& options, Schedule::Rate after) {
  return [options, after = std::move(after)](int64_t step, double base) {
    if (step >= options.warmup_steps) return after(step, base);
    return base * static_cast<double>(step) / static_cast<double>(options.warmup_steps);
  };
}

}  // namespace

Schedule::Schedule(torch::optim::Optimizer& optimizer, std::string name, Rate rate,
                   const ScheduleOptions& options)
    : optimizer_(&optimizer), name_(std::move(name)), rate_(std::move(rate)), options_(options) {
  if (!rate_) fail(name_, "the function is empty");
}

Schedule constant_schedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options) {
  check_steps("constant", options, /*needs_total=*/false);
  return {optimizer, "constant", with_warmup(options, [](int64_t, double base) { return base; }),
          options};
}

Schedule linear_schedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options) {
  check_steps("linear", options, /*needs_total=*/true);
  return {optimizer, "linear",
          with_warmup(options,
                      [options](int64_t step, double base) {
                        return base * (1 - progress_of(step, options));
                      }),
          options};
}

Schedule cosine_schedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options,
                         double cycles) {
  check_steps("cosine", options, /*needs_total=*/true);
  check_positive("cosine", "cycles", cycles);
  constexpr double kPi = 3.14159265358979323846;
  const auto rate = [options, cycles](int64_t step, double base) {
    const double angle = 2 * kPi * cycles * progress_of(step, options);
    return base * std::max(0.0, 0.5 * (1 + std::cos(angle)));
  };
  return {optimizer, "cosine", with_warmup(options, rate), options};
}

Schedule polynomial_schedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options,
                             double end_rate, double power) {
  check_steps("polynomial", options, /*needs_total=*/true);
  check_positive("polynomial", "power", power);
  if (!std::isfinite(end_rate) || end_rate < 0) {
    fail("polynomial", fmt::format("end_rate is {}, but must be finite and at least 0", end_rate));
  }
  const auto rate = [options, end_rate, power](int64_t step, double base) {
    if (end_rate > base) {
      fail("polynomial",
           fmt::format("end_rate is {}, but must be at most the optimizer's rate, which is {}",
                       end_rate, base));
    }
    const double left = 1 - progress_of(step, options);
    return (base - end_rate) * std::pow(left, power) + end_rate;
  };
  // Called during the warm-up, too, so that prepare reports a wrong end_rate.
  const auto checked = [rate, warm = with_warmup(options, rate)](int64_t step, double base) {
    rate(step, base);
    return warm(step, base);
  };
  return {optimizer, "polynomial", checked, options};
}

Schedule lambda_schedule(torch::optim::Optimizer& optimizer, std::function<double(int64_t)> factor,
                         StepUnit unit) {
  if (!factor) fail("lambda", "the function is empty");
  ScheduleOptions options;
  options.unit = unit;
  return {optimizer, "lambda",
          [factor = std::move(factor)](int64_t step, double base) { return base * factor(step); },
          options};
}

}  // namespace coupler
