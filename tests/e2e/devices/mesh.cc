// Models on a device, divided as the job's mesh says, train as one process does on the CPU.
#include <coupler/coupler.h>
#include <test_device.h>

#include "../mesh/mesh_checks.h"
#include "../mesh/texts.h"

namespace {

using coupler::Accelerator;

// Registered before the Accelerator looks for a device.
const bool kIsDouble = coupler::testing::register_if_chosen();

template <class Model>
void expect_weights_on_the_device(Accelerator& accelerator, Model& model,
                                  const Expected& expected) {
  accelerator.for_each_tensor(model, [&](const std::string& name, const torch::Tensor& value) {
    const double apart = (value.cpu() - expected.weights[name]).abs().max().template item<double>();
    EXPECT(apart < 1e-9, name + " differs by " + std::to_string(apart));
  });
  for (const auto& parameter : model->parameters())
    EXPECT(parameter.device() == accelerator.device(),
           "a parameter is on " + parameter.device().str());
}

Texts on_device(Accelerator& accelerator, const Texts& texts) {
  return {texts.ids.to(accelerator.device()), texts.targets.to(accelerator.device())};
}

void train_texts(Accelerator& accelerator, const std::string& head) {
  const Expected expected = train_on_texts_alone(kSteps);
  DividedNet model(accelerator.mesh().size("tensor") > 1 ? head : "");
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  train_as_expected(accelerator, net, opt, expected, 0, kSteps, [&, &net = net](int step) {
    const Texts texts =
        on_device(accelerator, own_texts(accelerator, joined_texts(step), kSamples));
    const auto scope = accelerator.context_parallel({{texts.ids, 1}, {texts.targets, 1}});
    const torch::Tensor loss = loss_of_texts(net, texts);
    EXPECT(loss.device() == accelerator.device(), "the loss is on " + loss.device().str());
    accelerator.backward(loss);
    return loss.item<double>();
  });
  expect_weights_on_the_device(accelerator, net, expected);
  accelerator.free_memory();
}

void texts_like_the_cpu(Accelerator& accelerator) { train_texts(accelerator, "colwise_gather"); }
void texts_with_a_divided_loss_like_the_cpu(Accelerator& accelerator) {
  train_texts(accelerator, "vocab");
}

// Needs training.mixed_precision = "bf16".
void bf16_learns(Accelerator& accelerator) {
  DividedNet model(accelerator.mesh().size("tensor") > 1 ? "colwise_gather" : "");
  model->to(torch::kFloat);
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  expect_learns(accelerator, opt, 30, [&, &net = net] {
    const Texts texts = on_device(accelerator, own_texts(accelerator, joined_texts(0), kGradients));
    const auto scope = accelerator.autocast();
    return loss_of_texts(net, texts);
  });
}

struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl() {
    torch::manual_seed(12);
    in = register_module("in", torch::nn::Linear(6, 6));
    experts = register_module("experts", coupler::MixtureOfExperts(coupler::MixtureOfExpertsOptions{
                                             .features = 6, .inner = 8, .experts = 4}));
    to(torch::kDouble);
  }
  // Of rows [rows, 6], which are targets as well.
  torch::Tensor loss_of(const torch::Tensor& rows) {
    const torch::Tensor loss = torch::mse_loss(experts->forward(in->forward(rows)), rows);
    return loss + 0.05 * experts->balance_loss();
  }
  torch::nn::Linear in{nullptr};
  coupler::MixtureOfExperts experts{nullptr};
};
TORCH_MODULE(Experts);

void experts_like_the_cpu(Accelerator& accelerator) {
  const auto joined = [](int step) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(40 + step));
    return torch::randn({24, 6}, generator, torch::kDouble);
  };
  Experts alone;
  const Expected expected =
      train_alone(*alone, kSteps, [&](int step) { return alone->loss_of(joined(step)); });
  Experts model;
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const int64_t rows = 24 / accelerator.mesh().size(kSamples),
                first = rows * accelerator.mesh().rank(kSamples);
  train_as_expected(accelerator, net, opt, expected, 0, kSteps, [&, &net = net](int step) {
    const auto loss = net->loss_of(joined(step).narrow(0, first, rows).to(accelerator.device()));
    accelerator.backward(loss);
    return loss.item<double>();
  });
  expect_weights_on_the_device(accelerator, net, expected);
  accelerator.free_memory();
}

}  // namespace

std::vector<Check> all_checks() {
  return {{"texts_like_the_cpu", texts_like_the_cpu},
          {"texts_with_a_divided_loss_like_the_cpu", texts_with_a_divided_loss_like_the_cpu},
          {"experts_like_the_cpu", experts_like_the_cpu},
          {"bf16_learns", bf16_learns, /*alone=*/true}};
}
