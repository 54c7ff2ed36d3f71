#include "expected.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "mesh_checks.h"

using coupler::Accelerator;

torch::OrderedDict<std::string, torch::Tensor> parameters_of(const torch::nn::Module& module) {
  torch::OrderedDict<std::string, torch::Tensor> result;
  for (const auto& item : module.named_parameters()) {
    const auto known = result.values();
    if (std::none_of(known.begin(), known.end(),
                     [&](const torch::Tensor& other) { return other.is_same(item.value()); }))
      result.insert(item.key(), item.value());
  }
  return result;
}

void expect_near(double ours, double expected, const std::string& what) {
  EXPECT(std::abs(ours - expected) < 1e-9,
         what + " is " + std::to_string(ours) + ", expected " + std::to_string(expected));
}

void expect_each_saved_once(Accelerator& accelerator, const std::string& checkpoint,
                            const torch::nn::Module& model) {
  if (!accelerator.is_main_process()) return;
  int64_t saved = 0, expected = 0;
  for (const auto& file : std::filesystem::directory_iterator(checkpoint)) {
    if (file.path().filename().string().rfind("model", 0) != 0) continue;
    const auto tensors = coupler::SafeTensors::open(file.path().string());
    for (const std::string& name : tensors.names()) saved += tensors.tensor(name).numel();
  }
  for (const auto& item : parameters_of(model)) expected += item.value().numel();
  EXPECT(saved == expected, "the checkpoint has " + std::to_string(saved) + " of " +
                                std::to_string(expected) + " elements");
}

void expect_error(const std::function<void()>& action, const std::string& part) {
  const std::string message = error_of(action);
  EXPECT(message.find(part) != std::string::npos, message);
}

double mean_over_replicas(Accelerator& accelerator, double own) {
  return accelerator.group(kGradients)
      .reduce(torch::tensor(own, torch::kDouble), coupler::ReduceOp::kMean)
      .item<double>();
}

Expected train_alone(const torch::nn::Module& model, int steps,
                     const std::function<torch::Tensor(int)>& loss_of, int batches,
                     double learning_rate) {
  // Each parameter once: torch would update a tied one twice.
  const std::vector<torch::Tensor> parameters = parameters_of(model).values();
  torch::optim::AdamW optimizer(parameters, learning_rate);
  Expected expected;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (int batch = 0; batch < batches; ++batch) {
      const torch::Tensor loss = loss_of(step * batches + batch);
      (loss / batches).backward();
      expected.losses.push_back(loss.item<double>());
    }
    expected.norms.push_back(torch::nn::utils::clip_grad_norm_(parameters, 0.1));
    optimizer.step();
  }
  expected.weights = parameters_of(model);
  return expected;
}

void expect_gradients(Accelerator& accelerator, const torch::nn::Module& model,
                      const torch::nn::Module& whole) {
  const auto ours = parameters_of(model);
  for (const auto& item : parameters_of(whole)) {
    const torch::Tensor gradient = accelerator.gradient(ours[item.key()]);
    EXPECT(torch::allclose(gradient, item.value().grad(), 1e-9, 1e-12),
           "the gradient of " + item.key() + " differs");
  }
}

void expect_resumes(Accelerator& accelerator, const torch::nn::Module& whole,
                    const std::function<double(int)>& run) {
  const SharedFolder folder(accelerator);
  run(0);
  const std::string path = accelerator.save_state(folder.path());
  expect_each_saved_once(accelerator, path, whole);
  const double second = run(1), third = run(2);
  accelerator.load_state(path);
  EXPECT(run(1) == second && run(2) == third, "it continues differently after load_state");
}

void shift(const torch::nn::Module& module, int by) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : parameters_of(module)) item.value().add_(by);
}
