// Learning-rate schedules on prepared optimizers: every rank has the formula's rates, steps use
// them, torch's schedulers reach the groups of sharded optimizers, and wrong calls give errors.
// Accumulation and skipped steps are covered in precision.cc.
#include <coupler/coupler.h>

#include <limits>

#include "check.h"

namespace {

using coupler::Accelerator;
using coupler::StepUnit;

// The gradient of every element is 1, so SGD subtracts the rate from each weight.
struct SlopeImpl : torch::nn::Module {
  SlopeImpl()
      : first(register_module("first", torch::nn::Linear(torch::nn::LinearOptions(6, 4).bias(0)))),
        second(
            register_module("second", torch::nn::Linear(torch::nn::LinearOptions(4, 5).bias(0)))) {
    to(torch::kDouble);
  }
  torch::Tensor forward() { return first->weight.sum() + second->weight.sum(); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Slope);

// Two groups with rates 0.5 and 0.25.
torch::optim::SGD two_rates(Slope& model) {
  using torch::optim::SGDOptions;
  return torch::optim::SGD(
      std::vector<torch::optim::OptimizerParamGroup>{
          {{model->first->weight}, std::make_unique<SGDOptions>(0.5)},
          {{model->second->weight}, std::make_unique<SGDOptions>(0.25)}},
      SGDOptions(0.5));
}

double first_weight(torch::nn::Linear& linear) {
  return linear->weight.detach()[0][0].item<double>();
}

// Takes a step and returns how far each group's weights moved.
std::vector<double> moved(Accelerator& accelerator, Slope& net, coupler::Optimizer& opt) {
  const double first = first_weight(net->first), second = first_weight(net->second);
  accelerator.backward(net->forward());
  opt.step();
  opt.zero_grad();
  return {first - first_weight(net->first), second - first_weight(net->second)};
}

void expect_rates(const std::vector<double>& got, const std::vector<double>& expected,
                  const std::string& where) {
  EXPECT(got.size() == expected.size(), where + ": wrong number of groups");
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT(std::abs(got[i] - expected[i]) < 1e-12, where + ": group " + std::to_string(i) +
                                                       " has " + std::to_string(got[i]) + ", not " +
                                                       std::to_string(expected[i]));
  }
}

void ours(Accelerator& accelerator) {
  Slope model;
  auto optimizer = two_rates(model);
  // The scheduler comes before the optimizer: the order does not matter.
  auto [scheduler, net, opt] =
      accelerator.prepare(coupler::linear_schedule(optimizer, {2, 6}), model, optimizer);
  EXPECT(scheduler.description().find(
             "linear: counts optimizer steps, warm-up until 2, end at 6") == 0,
         scheduler.description());
  const double factors[] = {0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0};
  for (int step = 0; step < 8; ++step) {
    const std::vector<double> expected = {0.5 * factors[step], 0.25 * factors[step]};
    const std::string where = "step " + std::to_string(step);
    expect_rates(scheduler.rates(), expected, where);
    expect_same_everywhere(accelerator, torch::tensor(scheduler.rates(), torch::kDouble), where);
    expect_rates(moved(accelerator, net, opt), expected, where + ", the rates of the step");
    scheduler.step();
    EXPECT(scheduler.steps() == step + 1, where + ": not counted");
  }
}

void units(Accelerator& accelerator) {
  Slope model;
  auto optimizer = two_rates(model);
  const int64_t world_size = accelerator.world_size();
  auto [net, opt, scheduler] = accelerator.prepare(
      model, optimizer,
      coupler::linear_schedule(optimizer, {0, 4 * world_size, StepUnit::kProcessSteps}));
  const std::string end = "end at " + std::to_string(4 * world_size);
  const std::string reached = ", reached after 4 optimizer steps of " + std::to_string(world_size);
  EXPECT(scheduler.description().find(world_size == 1 ? end : end + reached) != std::string::npos,
         scheduler.description());
  moved(accelerator, net, opt);
  scheduler.step();
  EXPECT(scheduler.steps() == world_size, "process steps: the processes were not counted");
  expect_rates(scheduler.rates(), {0.375, 0.1875}, "process steps");
}

void torchs(Accelerator& accelerator) {
  Slope model;
  auto optimizer = two_rates(model);
  Slope other_model;
  auto other_optimizer = two_rates(other_model);
  torch::optim::StepLR halves(optimizer, 1, 0.5);
  auto [net, opt, other_net, other_opt, scheduler] =
      accelerator.prepare(model, optimizer, other_model, other_optimizer, halves);
  EXPECT(scheduler.description() == "torch::optim::StepLR: counts optimizer steps, no end",
         scheduler.description());
  // LibTorch's StepLR lowers the rate from its second step on.
  const double factors[] = {1, 1, 0.5, 0.25};
  for (const double factor : factors) {
    expect_rates(moved(accelerator, net, opt), {0.5 * factor, 0.25 * factor}, "StepLR");
    scheduler.step();
  }
  expect_rates({other_optimizer.param_groups()[0].options().get_lr()}, {0.5},
               "the other optimizer");
  // The state has everything that the next step's rate depends on.
  const auto state = scheduler.state();
  EXPECT(state.steps == 4, "StepLR: its steps were not counted");
  scheduler.step();
  const auto expected = scheduler.rates();
  scheduler.load_state(state);
  expect_rates(scheduler.rates(), state.rates, "StepLR, state loaded");
  scheduler.step();
  expect_rates(scheduler.rates(), expected, "StepLR, a step after the state was loaded");
}

// A single rank would keep its rate: the mean decides for all ranks.
void plateau(Accelerator& accelerator) {
  Slope model;
  auto optimizer = two_rates(model);
  torch::optim::ReduceLROnPlateauScheduler torchs_own(
      optimizer, torch::optim::ReduceLROnPlateauScheduler::min, 0.5, /*patience=*/0);
  auto [net, opt, scheduler] =
      accelerator.prepare(model, optimizer, coupler::TorchSchedule(torchs_own).of(optimizer));
  const double rank = accelerator.rank();
  scheduler.step(10 + rank);
  const auto state = scheduler.state();
  EXPECT(std::abs(state.best - 10 - (accelerator.world_size() - 1) / 2.0) < 1e-6,
         "the plateau's best is " + std::to_string(state.best));
  scheduler.step(rank == 0 ? 9 : 11 + 4 * rank);
  const double factor = accelerator.world_size() == 1 ? 1 : 0.5;
  expect_rates(moved(accelerator, net, opt), {0.5 * factor, 0.25 * factor}, "plateau");
  scheduler.load_state(state);
  scheduler.step(100);
  expect_rates(scheduler.rates(), {0.25, 0.125}, "plateau, after its state was loaded");
}

void state_of_ours(Accelerator& accelerator) {
  Slope model, again;
  auto optimizer = two_rates(model), second = two_rates(again);
  auto make = [](torch::optim::Optimizer& of) { return coupler::cosine_schedule(of, {1, 9}); };
  auto [net, opt, scheduler] = accelerator.prepare(model, optimizer, make(optimizer));
  for (int step = 0; step < 4; ++step) scheduler.step();
  auto [net2, opt2, resumed] = accelerator.prepare(again, second, make(second));
  resumed.load_state(scheduler.state());
  expect_rates(resumed.rates(), scheduler.rates(), "loaded");
  scheduler.step();
  resumed.step();
  expect_rates(resumed.rates(), scheduler.rates(), "a step after loading");
}

void wrong_schedulers(Accelerator& accelerator) {
  auto contains = [](const std::string& text, const std::string& part) {
    EXPECT(text.find(part) != std::string::npos, "'" + text + "' lacks '" + part + "'");
  };
  Slope model, other;
  auto optimizer = two_rates(model), second = two_rates(other);
  torch::optim::StepLR halves(optimizer, 1, 0.5);
  const auto linear = coupler::linear_schedule(optimizer, {0, 5});
  contains(error_of([&] { accelerator.prepare(linear); }),
           "the scheduler 'linear' has no optimizer: the one it was made for was not prepared");
  contains(error_of([&] { accelerator.prepare(halves); }),
           "the scheduler 'torch::optim::StepLR' has no optimizer");
  auto [net, opt, net2, opt2] = accelerator.prepare(model, optimizer, other, second);
  contains(error_of([&] {
             accelerator.prepare(coupler::polynomial_schedule(optimizer, {0, 5}, 0.3));
           }),
           "end_rate is 0.3, but must be at most the optimizer's rate, which is 0.25");
  contains(error_of([&] {
             accelerator.prepare(coupler::lambda_schedule(
                 optimizer, [](int64_t) { return std::numeric_limits<double>::quiet_NaN(); }));
           }),
           "lambda schedule at step 0: the learning rate of group 0 is nan, but must be finite");
  second.param_groups()[1].options().set_lr(-0.5);
  contains(
      error_of([&] { accelerator.prepare(coupler::constant_schedule(second)); }),
      "the optimizer: the learning rate of group 1 is -0.5, but must be finite and at least 0");
  torch::optim::ReduceLROnPlateauScheduler plateau_scheduler(optimizer);
  contains(error_of([&] { accelerator.prepare(plateau_scheduler); }),
           "a ReduceLROnPlateauScheduler does not say which optimizer it belongs to, and 2 "
           "optimizers are prepared");
  contains(error_of([&] {
             accelerator.prepare(coupler::TorchSchedule(plateau_scheduler)
                                     .of(optimizer)
                                     .counting(StepUnit::kProcessSteps));
           }),
           "cannot count process steps");
  auto by_metric = accelerator.prepare(coupler::TorchSchedule(plateau_scheduler).of(optimizer));
  auto by_step = accelerator.prepare(linear);
  contains(error_of([&] { by_metric.step(); }), "needs a metric");
  contains(error_of([&] { by_step.step(1.0); }), "takes no metric");
  auto state = by_step.state();
  state.steps = -1;
  contains(error_of([&] { by_step.load_state(state); }), "has -1 steps, but must have 0 or more");
  state = by_step.state();
  state.rates.pop_back();
  contains(error_of([&] { by_step.load_state(state); }),
           "has 1 parameter groups, but the optimizer has 2");
  state = by_step.state();
  state.base_rates.clear();
  contains(error_of([&] { by_step.load_state(state); }), "the state has 0 base_rates, but 2 rates");
}

}  // namespace

std::vector<Check> scheduler_checks() {
  return {
      {"scheduler_ours", ours},           {"scheduler_units", units},
      {"scheduler_torchs", torchs},       {"scheduler_plateau", plateau},
      {"scheduler_state", state_of_ours}, {"scheduler_wrong_calls", wrong_schedulers},
  };
}
