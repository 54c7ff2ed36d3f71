// A pipeline whose stages are on a device trains as the unsplit model does on the CPU, and reports
// errors as there. Only over transports: backends that shard parameters reject pipelines.
#include <coupler/coupler.h>
#include <coupler/pipeline_parallel.h>
#include <test_device.h>

#include "check.h"

namespace {

using coupler::Accelerator;

// Registered before the Accelerator looks for a device.
const bool kIsDouble = coupler::testing::register_if_chosen();

torch::nn::Sequential make_layers() {
  torch::manual_seed(8);
  torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 6),
                              torch::nn::Tanh(), torch::nn::Linear(6, 3));
  model->to(torch::kDouble);
  return model;
}

// [rows, 5] and [rows], the same on every process.
std::pair<torch::Tensor, torch::Tensor> rows_of(int step, int64_t rows) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
  return {torch::randn({rows, 5}, generator, torch::kDouble),
          torch::randint(0, 3, {rows}, generator, torch::kLong)};
}

torch::Tensor mean_loss(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(logits, targets);
}

// Batches on the CPU or on the device; rows that do not divide evenly; shapes already known.
void pipeline_trains_like_the_cpu(Accelerator& accelerator) {
  torch::nn::Sequential model = make_layers(), unsplit = make_layers();
  auto pipeline =
      coupler::prepare_pipeline(accelerator, model, {.micro_batches = 3, .gather_output = true});
  torch::optim::AdamW optimizer(model->parameters(), 1e-2), plain(unsplit->parameters(), 1e-2);
  auto opt = accelerator.prepare(optimizer);
  for (const auto& parameter : model->parameters()) {
    EXPECT(parameter.is_meta() || parameter.device() == accelerator.device(),
           "a parameter is on " + parameter.device().str());
  }
  for (int step = 0; step < 4; ++step) {
    auto [input, target] = rows_of(step, step == 1 ? 7 : 6);
    const auto loss = mean_loss(unsplit->forward(input), target);
    loss.backward();
    if (step > 1) {
      input = input.to(accelerator.device());
      target = target.to(accelerator.device());
    }
    const double got = pipeline.train_step(input, target, mean_loss);
    EXPECT(std::abs(got - loss.item<double>()) < 1e-9,
           "the loss is " + std::to_string(got) + ", not " + std::to_string(loss.item<double>()));
    const double norm = accelerator.clip_grad_norm(model, 0.1);
    const double expected = torch::nn::utils::clip_grad_norm_(unsplit->parameters(), 0.1);
    EXPECT(std::abs(norm - expected) < 1e-9, "the norms differ");
    opt.step();
    opt.zero_grad();
    plain.step();
    plain.zero_grad();
  }
  const auto input = rows_of(9, 8).first;
  const auto output = pipeline.forward(input);
  EXPECT(output.device() == accelerator.device(), "the output is on " + output.device().str());
  EXPECT(torch::allclose(output.cpu(), unsplit->forward(input), 1e-9, 1e-12),
         "the outputs differ from the CPU's");
  const auto theirs = unsplit->named_parameters();
  accelerator.for_each_tensor(model, [&](const std::string& name, const torch::Tensor& value) {
    EXPECT(torch::allclose(value.cpu(), theirs[name], 1e-9, 1e-12), name + " differs");
  });
}

void pipeline_of_a_failing_loss(Accelerator& accelerator) {
  torch::nn::Sequential model = make_layers();
  auto pipeline = coupler::prepare_pipeline(accelerator, model, {.micro_batches = 3});
  const auto [input, target] = rows_of(0, 6);
  const std::string said = error_of([&, input = input, target = target] {
    pipeline.train_step(input, target, [](const torch::Tensor& logits, const torch::Tensor&) {
      return logits;  // more than one number
    });
  });
  EXPECT(said.find("must return one number for each micro-batch") != std::string::npos,
         "the error is: " + said);
}

}  // namespace

std::vector<Check> all_checks() {
  return {{"pipeline_trains_like_the_cpu", pipeline_trains_like_the_cpu},
          {"pipeline_of_a_failing_loss", pipeline_of_a_failing_loss, /*alone=*/true}};
}
