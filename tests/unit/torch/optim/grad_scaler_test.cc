// The rule of the scale, and which gradients carry which scale, on models of one process.
#include "optim/grad_scaler.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <coupler/error.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "plugin/plugin.h"
#include "strategy/data_parallel.h"

namespace coupler::optim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct LossScaling : ::testing::Test {
  static std::shared_ptr<comm::Communicator> alone() {
    static const config::BackendConfig kDefaults;
    return comm::Communicator::create({.plugin = plugin::Plugin::single(), .backend = &kDefaults});
  }
  static std::shared_ptr<strategy::DataParallel> model_with(
      const std::vector<at::Tensor>& parameters) {
    strategy::Model model;
    model.name = "Test";
    for (const at::Tensor& parameter : parameters) {
      model.parameters.push_back({std::to_string(model.parameters.size()), parameter, 0});
    }
    return std::make_shared<strategy::DataParallel>(
        std::move(model), nullptr, config::TrainingConfig{}, config::MemoryConfig{});
  }
  static at::Tensor parameter() { return at::zeros({3}).requires_grad_(true); }

  // One backward whose gradient is slope for every element, and the scaling of one step.
  bool step(GradScaler& scaler, const std::shared_ptr<strategy::DataParallel>& model, float slope) {
    for (const auto& known : model->model().parameters) known.tensor.mutable_grad().reset();
    backward(scaler, model, slope);
    const bool overflow = scaler.unscale({model.get()});
    scaler.update({model.get()});
    return overflow;
  }
  static void backward(GradScaler& scaler, const std::shared_ptr<strategy::DataParallel>& model,
                       float slope) {
    at::Tensor loss = at::zeros({});
    for (const auto& known : model->model().parameters) loss = loss + (known.tensor * slope).sum();
    scaler.scale_loss(loss, {model.get()}).backward();
  }
  static float gradient(const std::shared_ptr<strategy::DataParallel>& model, size_t index = 0) {
    return model->model().parameters[index].tensor.grad()[0].item<float>();
  }

  config::TrainingConfig config;
};

TEST_F(LossScaling, Defaults_AreTorchs) {
  const GradScaler scaler(config, alone());
  EXPECT_EQ(scaler.scale(), 65536);
  EXPECT_EQ(config.loss_scale_growth_factor, 2);
  EXPECT_EQ(config.loss_scale_backoff_factor, 0.5);
  EXPECT_EQ(config.loss_scale_growth_interval, 2000);
}

TEST_F(LossScaling, Gradients_ComeOutUnscaledOnce) {
  GradScaler scaler(config, alone());
  const auto model = model_with({parameter(), parameter()});
  scaler.add(model);
  backward(scaler, model, 3);
  EXPECT_EQ(gradient(model), 3 * 65536);
  EXPECT_FALSE(scaler.unscale({model.get()}));
  EXPECT_FALSE(scaler.unscale({model.get()}));
  EXPECT_EQ(gradient(model), 3);
  EXPECT_EQ(gradient(model, 1), 3);
}

TEST_F(LossScaling, NarrowLoss_IsScaledInFloat) {
  GradScaler scaler(config, alone());
  EXPECT_EQ(scaler.scale_loss(at::full({}, 2, at::kHalf), {}).item<float>(), 131072);
}

TEST_F(LossScaling, Overflow_HalvesAndRegularStepsGrow) {
  config.loss_scale_growth_interval = 3;
  GradScaler scaler(config, alone());
  const auto model = model_with({parameter()});
  scaler.add(model);
  EXPECT_FALSE(step(scaler, model, 1));
  EXPECT_FALSE(step(scaler, model, 1));
  EXPECT_TRUE(step(scaler, model, kInfinity));  // and the count restarts
  EXPECT_EQ(scaler.scale(), 32768);
  EXPECT_FALSE(step(scaler, model, 1));
  EXPECT_FALSE(step(scaler, model, 1));
  EXPECT_EQ(scaler.scale(), 32768);
  EXPECT_FALSE(step(scaler, model, 1));
  EXPECT_EQ(scaler.scale(), 65536);
  EXPECT_TRUE(step(scaler, model, std::numeric_limits<float>::quiet_NaN()));
  EXPECT_EQ(scaler.scale(), 32768);
}

TEST_F(LossScaling, ScaleThatAFloatCannotHold_DoesNotCome) {
  config.loss_scale_init_scale = 3e38;
  config.loss_scale_growth_interval = 1;
  GradScaler scaler(config, alone());
  const auto model = model_with({parameter()});
  scaler.add(model);
  EXPECT_FALSE(step(scaler, model, 0));
  EXPECT_EQ(scaler.scale(), 3e38);
  for (int i = 0; i < 500; ++i) step(scaler, model, kInfinity);
  EXPECT_GT(scaler.scale(), 0);
  EXPECT_FALSE(step(scaler, model, 1));
  EXPECT_FLOAT_EQ(gradient(model), 1);
}

// Models with lossy communication need this: the residual that they carry has the old scale.
TEST_F(LossScaling, ScaleMoves_CarriedGradientsOfEveryModelFollow) {
  struct Carrying : strategy::DataParallel {
    using strategy::DataParallel::DataParallel;
    std::vector<strategy::StateTensor> state_tensors() override {
      return {{.name = "scales", .tensor = scales, .scales_with_loss = true},
              {.name = "stays", .tensor = stays}};
    }
    at::Tensor scales = at::ones({}, at::kDouble), stays = at::ones({}, at::kDouble);
  };
  config.loss_scale_growth_interval = 2;
  config.loss_scale_growth_factor = 3;
  GradScaler scaler(config, alone());
  std::vector<std::shared_ptr<Carrying>> models;
  for (int i = 0; i < 2; ++i) {
    strategy::Model model;
    model.parameters.push_back({"weight", parameter(), 0});
    models.push_back(std::make_shared<Carrying>(std::move(model), nullptr, config::TrainingConfig{},
                                                config::MemoryConfig{}));
    scaler.add(models.back());
  }
  step(scaler, models[0], kInfinity);
  for (const auto& model : models) EXPECT_EQ(model->scales.item<double>(), 0.5);
  step(scaler, models[0], 1);
  for (const auto& model : models) EXPECT_EQ(model->scales.item<double>(), 0.5);
  step(scaler, models[0], 1);
  for (const auto& model : models) {
    EXPECT_EQ(model->scales.item<double>(), 0.5 * 3);
    EXPECT_EQ(model->stays.item<double>(), 1);
  }
}

// Both losses first, then both steps: the second model's gradients have the old scale.
TEST_F(LossScaling, ScaleMovesBetweenTwoModels_GradientsFollow) {
  GradScaler scaler(config, alone());
  const auto first = model_with({parameter()}), second = model_with({parameter()});
  scaler.add(first);
  scaler.add(second);
  backward(scaler, first, kInfinity);
  backward(scaler, second, 5);
  EXPECT_TRUE(scaler.unscale({first.get()}));
  scaler.update({first.get()});
  EXPECT_EQ(scaler.scale(), 32768);
  EXPECT_FALSE(scaler.unscale({second.get()}));
  EXPECT_EQ(gradient(second), 5);
}

// Clipped before the other model's backward: its step does not unscale again.
TEST_F(LossScaling, BackwardOfAnotherModel_LeavesUnscaledGradients) {
  GradScaler scaler(config, alone());
  const auto first = model_with({parameter()}), second = model_with({parameter()});
  scaler.add(first);
  scaler.add(second);
  backward(scaler, first, 5);
  EXPECT_FALSE(scaler.unscale({first.get()}));
  backward(scaler, second, 7);
  EXPECT_FALSE(scaler.unscale({first.get(), second.get()}));
  EXPECT_EQ(gradient(first), 5);
  EXPECT_EQ(gradient(second), 7);
}

TEST_F(LossScaling, TwoOptimizersOfOneModel_CountOnceAndUnscaleOnce) {
  GradScaler scaler(config, alone());
  const auto model = model_with({parameter(), parameter()});
  scaler.add(model);
  backward(scaler, model, kInfinity);
  EXPECT_TRUE(scaler.unscale({model.get()}));
  scaler.update({model.get()});
  scaler.gradients_dropped({model.get()});
  EXPECT_TRUE(scaler.unscale({model.get()}));  // the other optimizer's step
  scaler.update({model.get()});
  EXPECT_EQ(scaler.scale(), 32768);
  EXPECT_FALSE(step(scaler, model, 1));
  EXPECT_EQ(gradient(model), 1);
}

TEST_F(LossScaling, DroppedAfterUnscaling_TheNextBackwardBeginsAnew) {
  GradScaler scaler(config, alone());
  const auto first = model_with({parameter()}), second = model_with({parameter()});
  scaler.add(first);
  scaler.add(second);
  backward(scaler, first, 5);
  scaler.unscale({first.get()});
  scaler.gradients_dropped({first.get()});
  first->model().parameters[0].tensor.mutable_grad().reset();
  // Which models this loss reaches is unknown.
  scaler.scale_loss((first->model().parameters[0].tensor * 7).sum(), {}).backward();
  EXPECT_FALSE(scaler.unscale({first.get()}));
  EXPECT_EQ(gradient(first), 7);
}

TEST_F(LossScaling, State_ComesBack) {
  config.loss_scale_growth_interval = 3;
  GradScaler scaler(config, alone()), other(config, alone());
  const auto model = model_with({parameter()});
  scaler.add(model);
  other.add(model);
  step(scaler, model, kInfinity);
  step(scaler, model, 1);
  step(scaler, model, 1);
  other.load_state(scaler.state());
  EXPECT_EQ(other.scale(), 32768);
  step(other, model, 1);
  EXPECT_EQ(other.scale(), 65536);
}

TEST_F(LossScaling, WrongState_NamesValueAndRule) {
  GradScaler scaler(config, alone());
  const auto message = [&](const GradScaler::State& state) -> std::string {
    try {
      scaler.load_state(state);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(message({0, 0}), "loss scale: 0 cannot be loaded: it must be finite and above 0");
  EXPECT_EQ(message({kInfinity, 0}),
            "loss scale: inf cannot be loaded: it must be finite and above 0");
  EXPECT_EQ(message({1, -1}),
            "loss scale: -1 steps without overflow cannot be loaded: the number must be 0 or more");
}

TEST_F(LossScaling, SparseGradient_IsRefused) {
  GradScaler scaler(config, alone());
  const auto model = model_with({at::zeros({4, 2}).requires_grad_(true)});
  scaler.add(model);
  const at::Tensor& table = model->model().parameters[0].tensor;
  const at::Tensor rows = at::tensor({0, 2});
  scaler.scale_loss(at::embedding(table, rows, -1, false, /*sparse=*/true).sum(), {}).backward();
  try {
    scaler.unscale({model.get()});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a sparse gradient cannot be unscaled"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace coupler::optim
