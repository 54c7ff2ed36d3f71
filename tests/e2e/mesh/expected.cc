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
