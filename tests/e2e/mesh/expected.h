// What training on a mesh is compared with, and comparisons.
#pragma once

#include <coupler/coupler.h>

#include <functional>
#include <string>
#include <vector>

#include "check.h"

// Of training that is compared.
inline constexpr int kSteps = 6;
// The ranks that average gradients.
inline constexpr const char* kGradients = "data+shard+expert+context";

// The losses and norms of one process, and its weights at the end.
struct Expected {
  std::vector<double> losses, norms;
  torch::OrderedDict<std::string, torch::Tensor> weights;
};

// Each parameter once, under its first name.
torch::OrderedDict<std::string, torch::Tensor> parameters_of(const torch::nn::Module& module);

void expect_near(double ours, double expected, const std::string& what);

// The action throws an Error whose text has this part.
void expect_error(const std::function<void()>& action, const std::string& part);

double mean_over_replicas(coupler::Accelerator& accelerator, double own);

// Whatever the mesh, a checkpoint's files together have each parameter once.
void expect_each_saved_once(coupler::Accelerator& accelerator, const std::string& checkpoint,
                            const torch::nn::Module& model);

// The whole weights of a prepared model.
template <class Model>
void expect_weights(coupler::Accelerator& accelerator, Model& model, const Expected& expected) {
  size_t seen = 0;
  accelerator.for_each_tensor(model, [&](const std::string& name, const torch::Tensor& value) {
    const torch::Tensor& wanted = expected.weights[name];
    EXPECT(value.sizes() == wanted.sizes(), name + " has another shape");
    const double difference = (value - wanted).abs().max().template item<double>();
    EXPECT(difference < 1e-9, name + " differs by " + std::to_string(difference));
    ++seen;
  });
  EXPECT(seen == expected.weights.size(), "the number of weights");
}
