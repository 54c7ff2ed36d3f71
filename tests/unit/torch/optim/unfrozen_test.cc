// A parameter that was frozen when its model was prepared, and is trained later: no strategy puts
// its gradients together with other ranks', so the optimizer refuses it.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "optim/optimizer.h"
#include "strategy/data_parallel.h"

namespace coupler::optim {
namespace {

struct Unfrozen : ::testing::Test {
  Unfrozen() {
    strategy::Model described;
    described.name = "Test";
    described.parameters.push_back({"weight", weight, 0});
    described.parameters.push_back({"bias", bias, 0});
    model = std::make_shared<strategy::DataParallel>(
        std::move(described), nullptr, config::TrainingConfig{}, config::MemoryConfig{});
    optimizer = std::make_unique<OptimizerState>(
        sgd, std::vector<strategy::ModelState*>{model.get()}, StepRules{.loop = &loop});
  }
  void backward() const { (weight * 2 + bias).sum().backward(); }

  const at::Tensor weight = at::zeros({3}).requires_grad_(true), bias = at::zeros({3});
  torch::optim::SGD sgd{std::vector<at::Tensor>{weight, bias}, torch::optim::SGDOptions(0.5)};
  const StepState loop;
  std::shared_ptr<strategy::DataParallel> model;
  std::unique_ptr<OptimizerState> optimizer;
};

TEST_F(Unfrozen, AfterPrepare_IsRefusedByName) {
  bias.requires_grad_(true);
  backward();
  try {
    optimizer->step();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'bias' was frozen when its model 'Test'"),
              std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(at::equal(weight, at::zeros({3}))) << "part of a refused step was taken";
}

TEST_F(Unfrozen, TrainedAtPrepare_MayBeFrozenMeanwhile) {
  backward();
  optimizer->step();
  optimizer->zero_grad(/*set_to_none=*/true);
  weight.requires_grad_(false);
  optimizer->step();
  EXPECT_TRUE(at::equal(weight, at::full({3}, -1.0)));
  weight.requires_grad_(true);
  backward();
  optimizer->step();
  EXPECT_TRUE(at::equal(weight, at::full({3}, -2.0)));
  EXPECT_TRUE(at::equal(bias, at::zeros({3})));
}

}  // namespace
}  // namespace coupler::optim
