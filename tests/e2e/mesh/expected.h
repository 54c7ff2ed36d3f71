// What training on a mesh is compared with, and comparisons.
#pragma once

#include <coupler/coupler.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "shared_folder.h"

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

// Trains one process with AdamW. loss_of: the loss of a batch; batches: how many are accumulated in
// each step; all of them have a loss in the result.
Expected train_alone(const torch::nn::Module& model, int steps,
                     const std::function<torch::Tensor(int batch)>& loss_of, int batches = 1,
                     double learning_rate = 1e-2);

// The gradients of a prepared model are those of a whole one.
void expect_gradients(coupler::Accelerator& accelerator, const torch::nn::Module& model,
                      const torch::nn::Module& whole);

// Whatever the mesh, a checkpoint's files together have each parameter once.
void expect_each_saved_once(coupler::Accelerator& accelerator, const std::string& checkpoint,
                            const torch::nn::Module& model);

// Two more steps after a checkpoint are the same again. run: a whole step, returns its loss.
void expect_resumes(coupler::Accelerator& accelerator, const torch::nn::Module& whole,
                    const std::function<double(int step)>& run);

// Makes initial values differ between ranks: prepare gives all of them rank 0's.
void shift(const torch::nn::Module& module, int by);

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

// Steps first to end - 1 have the expected losses and norms. run: forward and backward of a step,
// returns this rank's loss.
template <class Model, class Optimizer>
void train_as_expected(coupler::Accelerator& accelerator, Model& model, Optimizer& optimizer,
                       const Expected& expected, int first, int end,
                       const std::function<double(int step)>& run) {
  for (int step = first; step < end; ++step) {
    const auto index = static_cast<size_t>(step);
    expect_near(mean_over_replicas(accelerator, run(step)), expected.losses[index], "the loss");
    expect_near(accelerator.clip_grad_norm(model, 0.1), expected.norms[index], "the gradient norm");
    optimizer.step();
    optimizer.zero_grad();
  }
}

// The loss on the same batch falls. loss_of: its forward.
template <class Optimizer>
void expect_learns(coupler::Accelerator& accelerator, Optimizer& optimizer, int steps,
                   const std::function<torch::Tensor()>& loss_of) {
  double first = 0, last = 0;
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor loss = loss_of();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT(last < 0.9 * first,
         "the loss went from " + std::to_string(first) + " to " + std::to_string(last));
}

// The prepared model has these values, bit for bit.
template <class Model>
void expect_same_weights(coupler::Accelerator& accelerator, Model& model,
                         const torch::nn::Module& whole) {
  const auto weights = parameters_of(whole);
  accelerator.for_each_tensor(model, [&](const std::string& name, const torch::Tensor& value) {
    EXPECT(torch::equal(value, weights[name]), name + " has other values");
  });
}

// save_model writes whole tensors; load_model gives each rank its part of them. model has the
// values of whole.
template <class Model>
void expect_weights_files(coupler::Accelerator& accelerator, Model model,
                          const torch::nn::Module& whole) {
  const SharedFolder folder(accelerator);
  auto net = accelerator.prepare(model);
  accelerator.save_model(net, folder.path());
  const auto saved = coupler::SafeTensors::open(folder.path() + "/model.safetensors");
  for (const auto& item : parameters_of(whole))
    EXPECT(torch::equal(saved.tensor(item.key()), item.value()), item.key() + " is not as made");
  Model other;
  shift(*other, 3);
  auto loaded = accelerator.prepare(other);
  accelerator.load_model(loaded, folder.path());
  expect_same_weights(accelerator, loaded, whole);
}

// Built without memory: the ranks' parts are what a whole model's would be.
template <class Model>
void expect_from_empty_weights(coupler::Accelerator& accelerator, const torch::nn::Module& whole) {
  std::shared_ptr<typename Model::ContainedType> model;
  {
    const coupler::EmptyWeights empty;
    model = std::make_shared<typename Model::ContainedType>();
  }
  Model net(model);
  net = accelerator.prepare(net);
  expect_same_weights(accelerator, net, whole);
}
