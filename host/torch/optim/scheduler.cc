#include <coupler/error.h>
#include <coupler/scheduler.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "optim/scheduler_core.h"
#include "tensors/tensor_ops.h"

namespace coupler {
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
  advance(all_reduce_number(*comm_, metric, DB_SUM) / comm_->size());
}

std::vector<double> SchedulerCore::rates() const { return rates_of(optimizer_->torch_optimizer()); }

std::string SchedulerCore::description() const {
  const ScheduleOptions options = driver_->options();
  std::string text = fmt::format("{}: counts {}", driver_->name(), unit_name(driver_->unit()));
  if (options.warmup_steps > 0) text += fmt::format(", warm-up until {}", options.warmup_steps);
  if (options.total_steps == 0) return text + ", no end";
  text += fmt::format(", end at {}", options.total_steps);
  const int world = comm_->size();
  if (driver_->unit() == StepUnit::kProcessSteps && world > 1) {
    text += fmt::format(", reached after {} optimizer steps of {} processes",
                        (options.total_steps + world - 1) / world, world);
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

void Scheduler::step() { core_->step(); }
void Scheduler::step(double metric) { core_->step(metric); }
int64_t Scheduler::steps() const { return core_->steps(); }
std::vector<double> Scheduler::rates() const { return core_->rates(); }
std::string Scheduler::description() const { return core_->description(); }
Scheduler::State Scheduler::state() const { return core_->state(); }
void Scheduler::load_state(const State& state) { core_->load_state(state); }

}  // namespace coupler
