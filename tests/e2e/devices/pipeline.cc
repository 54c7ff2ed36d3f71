// A pipeline whose stages compute on a device equals the unsplit model on the CPU.
#include <coupler/coupler.h>

#include "device.h"

namespace {

using coupler::Accelerator;

torch::nn::Sequential make_model() {
  torch::manual_seed(6);
  torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 7),
                              torch::nn::Tanh(), torch::nn::Linear(7, 3));
  model->to(torch::kDouble);
  return model;
}

torch::Tensor loss_of(const torch::Tensor& scores, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(scores, targets);
}

void pipeline_trains_like_the_cpu(Accelerator& accelerator) {
  torch::nn::Sequential model = make_model(), unsplit = make_model();
  auto pipeline = coupler::prepare_pipeline(accelerator, model, {.micro_batches = 4});
  torch::optim::AdamW optimizer(model->parameters(), 1e-2), plain(unsplit->parameters(), 1e-2);
  auto opt = accelerator.prepare(optimizer);
  auto generator = at::detail::createCPUGenerator(12);
  const auto input = torch::randn({10, 5}, generator, torch::kDouble);
  const auto target = torch::randint(0, 3, {10}, generator, torch::kLong);
  for (int step = 0; step < 4; ++step) {
    const double got = pipeline.train_step(input, target, loss_of);
    const auto right = loss_of(unsplit->forward(input), target);
    right.backward();
    EXPECT(std::abs(got - right.item<double>()) < 1e-9, "the losses differ");
    opt.step();
    opt.zero_grad();
    plain.step();
    plain.zero_grad();
  }
  for (const auto& parameter : model->parameters()) {
    EXPECT(parameter.is_meta() || parameter.device() == accelerator.device(),
           "a parameter is on " + parameter.device().str());
  }
  const auto output = pipeline.forward(input);
  if (output.defined()) {
    EXPECT(output.device() == accelerator.device(), "the output is on " + output.device().str());
    EXPECT(torch::allclose(output.cpu(), unsplit->forward(input), 1e-9, 1e-12),
           "the outputs differ");
  }
  accelerator.free_memory();
}

}  // namespace

std::vector<Check> pipeline_checks() {
  return {{"pipeline_trains_like_the_cpu", pipeline_trains_like_the_cpu, /*alone=*/true}};
}
