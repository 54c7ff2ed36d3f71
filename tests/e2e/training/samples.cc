// The code in docs/from-accelerate.md, translated from Accelerate's own samples: compiled from the
// page and run under every backend. Each sample learns, and the ranks agree afterwards.
#include <coupler/coupler.h>

#include "check.h"

namespace samples {

torch::Tensor loss_function(const torch::Tensor& outputs, const torch::Tensor& targets) {
  return torch::mse_loss(outputs, targets);
}

torch::Tensor complex_loss_function(const torch::Tensor& outputs, const torch::Tensor& targets) {
  return torch::mse_loss(outputs.to(torch::kFloat), targets);
}

#include "from_accelerate_page.h"

}  // namespace samples

namespace {

using coupler::Accelerator;

constexpr int64_t kSamples = 35;  // not a multiple of anything below

// Data that a layer from 4 to 2 features can learn exactly.
torch::Tensor inputs() {
  auto generator = at::detail::createCPUGenerator(3);
  return torch::randn({kSamples, 4}, generator);
}

torch::Tensor targets() {
  const auto all = inputs();
  return all.narrow(1, 0, 2) - all.narrow(1, 2, 2);
}

auto small_batches() {
  return coupler::data_loader(coupler::TensorDataset(inputs(), targets()), {.batch_size = 2});
}

double loss_over_all(torch::nn::Linear& net) {
  torch::NoGradGuard no_grad;
  return torch::mse_loss(net->forward(inputs()), targets()).item<double>();
}

// Makes a model and what a loop needs, the same on every rank; `train` gets the prepared objects.
template <class Train>
void learns(Accelerator& accelerator, const Train& train) {
  torch::manual_seed(1);
  torch::nn::Linear model(4, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  auto [net, opt, batches, scheduler] =
      accelerator.prepare(model, optimizer, small_batches(), coupler::constant_schedule(optimizer));
  const double before = loss_over_all(net);
  for (int epoch = 0; epoch < 20; ++epoch) train(net, opt, batches, scheduler);
  const double after = loss_over_all(net);
  EXPECT(after < 0.5 * before, std::to_string(before) + " became " + std::to_string(after));
  expect_same_everywhere(accelerator, torch::tensor(after, torch::kDouble), "the loss");
}

void plain_loop(Accelerator& accelerator) {
  torch::nn::Linear model(4, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto loader = small_batches();
  auto schedule = coupler::constant_schedule(optimizer);
  const double before = loss_over_all(model);
  samples::train_everything(accelerator, model, optimizer, loader, schedule);
  EXPECT(loss_over_all(model) < before, "nothing was learned");
}

void accumulation(Accelerator& accelerator) {
  const int64_t steps = accelerator.gradient_accumulation_steps();
  accelerator.set_gradient_accumulation_steps(2);
  learns(accelerator, [&](auto& net, auto& opt, auto& batches, auto& scheduler) {
    samples::train_accumulating(accelerator, net, opt, batches, scheduler);
  });
  accelerator.set_gradient_accumulation_steps(4);
  learns(accelerator, [&](auto& net, auto& opt, auto& batches, auto& scheduler) {
    samples::train_accumulating_zero_first(accelerator, net, opt, batches, scheduler);
  });
  accelerator.set_gradient_accumulation_steps(steps);
}

void by_hand(Accelerator& accelerator) {
  learns(accelerator, [&](auto& net, auto& opt, auto& batches, auto&) {
    samples::train_by_hand(accelerator, net, opt, batches);
  });
}

void clipping(Accelerator& accelerator) {
  learns(accelerator, [&](auto& net, auto& opt, auto& batches, auto&) {
    samples::train_clipping(accelerator, net, opt, batches);
  });
}

void mixed(Accelerator& accelerator) {
  learns(accelerator, [&](auto& net, auto& opt, auto& batches, auto&) {
    samples::train_mixed(accelerator, net, opt, batches);
  });
}

void transformer(Accelerator& accelerator) {
  torch::manual_seed(2);
  coupler::TensorDataset sentences(torch::randn({24, 5, 8}), torch::randint(8, {24}, torch::kLong));
  samples::train_transformer(accelerator, sentences);
}

// Every sample once, in the order of the dataset.
void evaluation(Accelerator& accelerator) {
  torch::nn::Linear model(4, 2);
  auto [net, batches] = accelerator.prepare(model, small_batches());
  const auto [predictions, answers] = samples::evaluate(accelerator, net, batches);
  EXPECT(torch::equal(answers, targets()), "the targets differ from the dataset's");
  torch::NoGradGuard no_grad;
  EXPECT(torch::allclose(predictions, net->forward(inputs())), "the predictions differ");
}

}  // namespace

std::vector<Check> sample_checks() {
  return {{"sample_plain_loop", plain_loop}, {"sample_accumulation", accumulation},
          {"sample_no_sync", by_hand},       {"sample_clipping", clipping},
          {"sample_mixed_bf16_fp16", mixed}, {"sample_transformer", transformer},
          {"sample_evaluation", evaluation}};
}
