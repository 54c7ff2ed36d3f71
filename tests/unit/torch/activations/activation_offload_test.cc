// Activation checkpointing with inputs in host memory between forward and backward, on the test
// double of an accelerator: gradients equal to the last bit, and less device memory.
#include "activations/activation_offload.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/accelerator.h>
#include <coupler/activation_checkpoint.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "activations/forward_recorder.h"
#include "refusal.h"
#include "test_device.h"

namespace coupler::activations {
namespace {

namespace nn = torch::nn;
using coupler::testing::device_bytes;
using coupler::testing::expect_error;
using coupler::testing::on_device;
using coupler::testing::test_device;

constexpr int64_t kRows = 6, kBlockWidth = 16;
constexpr size_t kBlocks = 4, kBytes = kRows * kBlockWidth * sizeof(float);

struct ScaledBlockImpl : nn::Module {
  ScaledBlockImpl() {
    in = register_parameter("in", on_device(at::randn({2 * kBlockWidth, kBlockWidth}) * 0.2));
    out = register_parameter("out", on_device(at::randn({kBlockWidth, 2 * kBlockWidth}) * 0.2));
    scale = register_buffer("scale", on_device(at::full({kBlockWidth}, 0.5)));
  }
  // all: an input of all blocks.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& all) {
    const at::Tensor hidden = at::gelu(at::linear(x * all, in));
    return x + at::dropout(at::linear(hidden, out), 0.25, true) * scale;
  }
  at::Tensor in, out, scale;
};
TORCH_MODULE(ScaledBlock);

enum class How { kPlain, kFunction, kNested, kConfigured };

struct TowerImpl : nn::Module {
  TowerImpl() {
    blocks = register_module("blocks", nn::ModuleList());
    for (size_t i = 0; i < kBlocks; ++i) blocks->push_back(ScaledBlock());
    last = register_parameter("last", on_device(at::randn({3, kBlockWidth})));
  }
  at::Tensor block(size_t i, const at::Tensor& x, const at::Tensor& all) {
    return blocks[i]->as<ScaledBlock>()->forward(x, all);
  }
  at::Tensor forward(at::Tensor x, const at::Tensor& all, How how,
                     const ActivationCheckpointOptions& options) {
    const auto run = [this](size_t i, const at::Tensor& in, const at::Tensor& every) {
      return block(i, in, every);
    };
    size_t next = 0;
    if (how == How::kNested) {
      for (; next < kBlocks; next += 2) {
        x = activation_checkpoint(
            options,
            [this, options, next](const at::Tensor& in, const at::Tensor& every) {
              at::Tensor y = in;
              for (size_t i = next; i < next + 2; ++i) {
                y = activation_checkpoint(
                    options,
                    [this, i](const at::Tensor& inner, const at::Tensor& each) {
                      return block(i, inner, each);
                    },
                    y, every);
              }
              return y;
            },
            x, all);
      }
    }
    for (; next < kBlocks; ++next) {
      x = how == How::kFunction ? activation_checkpoint(options, run, next, x, all)
                                : run(next, x, all);
    }
    return at::linear(x, last).pow(2).mean();
  }
  nn::ModuleList blocks;
  at::Tensor last;
};
TORCH_MODULE(Tower);

// describe() accepts only models in host memory.
strategy::Model described(const Tower& tower) {
  strategy::Model model;
  std::map<std::string, size_t> modules;
  const auto parent_of = [](const std::string& name) {
    const size_t dot = name.rfind('.');
    return dot == std::string::npos ? std::string() : name.substr(0, dot);
  };
  for (const auto& item : tower->named_modules()) {
    const bool root = item.key().empty();
    const auto parent = root ? -1 : static_cast<int64_t>(modules.at(parent_of(item.key())));
    modules[item.key()] = model.modules.size();
    model.modules.push_back({item.key(), item.value()->name(), parent});
  }
  for (const auto& item : tower->named_parameters()) {
    model.parameters.push_back({item.key(), item.value(), modules.at(parent_of(item.key()))});
  }
  for (const auto& item : tower->named_buffers()) {
    model.buffers.emplace_back(item.key(), item.value());
  }
  return model;
}

struct OffloadOutcome {
  std::vector<at::Tensor> gradients;
  size_t between = 0;  // bytes added on the device between forward and backward
  at::Tensor next_random;
};

class ActivationOffloading : public ::testing::Test {
 protected:
  ~ActivationOffloading() override {
    ForwardRecorder::of_this_thread().forget_all();
    rules_.forget_all();
    rules_.set_default(false);
  }

  // Two steps; gradients accumulate.
  OffloadOutcome run(How how, std::optional<bool> offload, bool retain = false) {
    torch::manual_seed(3);
    Tower tower;
    const strategy::Model model = described(tower);
    rules_.leave_in_place(model);
    ForwardRecorder& recorder = ForwardRecorder::of_this_thread();
    if (how == How::kConfigured) recorder.watch(model, {"blocks.*"});
    const at::Tensor all = on_device(at::rand({kRows, kBlockWidth}));
    OffloadOutcome outcome;
    for (int step = 0; step < 2; ++step) {
      const at::Tensor x = on_device(at::randn({kRows, kBlockWidth}));
      const size_t before = device_bytes(0);
      const at::Tensor loss = tower->forward(x, all, how, {offload});
      outcome.between = device_bytes(0) - before;
      if (retain) torch::autograd::backward({loss}, {}, /*retain_graph=*/true);
      torch::autograd::backward({loss});
    }
    recorder.forget_all();
    rules_.forget_all();
    for (const at::Tensor& parameter : tower->parameters()) {
      outcome.gradients.push_back(parameter.grad().cpu());
    }
    outcome.next_random = at::randn({4});
    return outcome;
  }

  OffloadOutcome configured(How how, bool retain = false) {
    rules_.set_default(true);
    OffloadOutcome outcome = run(how, std::nullopt, retain);
    rules_.set_default(false);
    return outcome;
  }

  static void expect_same(const OffloadOutcome& one, const OffloadOutcome& other) {
    ASSERT_EQ(one.gradients.size(), other.gradients.size());
    for (size_t i = 0; i < one.gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(one.gradients[i], other.gradients[i])) << "gradient " << i;
    }
    EXPECT_TRUE(at::equal(one.next_random, other.next_random));
  }

  ActivationOffload& rules_ = ActivationOffload::of_process();
};

TEST_F(ActivationOffloading, InputsOfTheFunction_LeaveTheDeviceUntilBackward) {
  const OffloadOutcome plain = run(How::kPlain, std::nullopt);
  const OffloadOutcome kept = run(How::kFunction, false);
  const OffloadOutcome offloaded = run(How::kFunction, true);
  expect_same(plain, kept);
  expect_same(plain, offloaded);
  // The first block's input belongs to the program, and the last block's result to the head.
  EXPECT_EQ(kept.between - offloaded.between, (kBlocks - 1) * kBytes);
}

TEST_F(ActivationOffloading, InputsOfConfiguredUnits_LeaveTheDeviceUntilBackward) {
  const OffloadOutcome plain = run(How::kPlain, std::nullopt);
  const OffloadOutcome kept = run(How::kConfigured, std::nullopt);
  const OffloadOutcome offloaded = configured(How::kConfigured);
  expect_same(plain, kept);
  expect_same(plain, offloaded);
  // For each unit, the input of its first parameter: x * all.
  EXPECT_EQ(kept.between - offloaded.between, kBlocks * kBytes);
}

TEST_F(ActivationOffloading, Configuration_IsTheFunctionsDefault) {
  const OffloadOutcome kept = run(How::kFunction, std::nullopt);
  const OffloadOutcome offloaded = configured(How::kFunction);
  EXPECT_EQ(kept.between - offloaded.between, (kBlocks - 1) * kBytes);
  rules_.set_default(true);
  EXPECT_EQ(run(How::kFunction, false).between, kept.between);
}

TEST_F(ActivationOffloading, PartsInParts_HaveTheSameGradients) {
  const OffloadOutcome kept = run(How::kNested, false), offloaded = run(How::kNested, true);
  expect_same(run(How::kPlain, std::nullopt), offloaded);
  EXPECT_EQ(kept.between - offloaded.between, kBytes);
}

TEST_F(ActivationOffloading, RetainedGraph_GoesBackwardTwice) {
  const OffloadOutcome plain = run(How::kPlain, std::nullopt, true);
  expect_same(plain, run(How::kFunction, true, true));
  expect_same(plain, configured(How::kConfigured, true));
}

TEST_F(ActivationOffloading, InputThatTwoPartsHave_ComesBackOnce) {
  const at::Tensor weight = on_device(at::ones({kBlockWidth})).requires_grad_();
  at::Tensor first, second;
  {
    const at::Tensor x = on_device(at::randn({kRows, kBlockWidth}));
    const auto product = [&](const at::Tensor& in) { return in * weight; };
    const ActivationCheckpointOptions options{true};
    first = activation_checkpoint(options, product, x).sum();
    second = activation_checkpoint(options, product, x.t().t()).sum();
  }
  const size_t before = device_bytes(0);
  coupler::testing::reset_device_bytes();
  torch::autograd::backward({first + second});
  EXPECT_EQ(device_bytes(0) - before, kBlockWidth * sizeof(float));  // the gradient
  EXPECT_LT(coupler::testing::most_device_bytes(0), before + 5 * kBytes);
}

TEST_F(ActivationOffloading, ViewsAsInputs_HaveTheSameGradients) {
  std::vector<at::Tensor> gradients;
  for (const bool offload : {false, true}) {
    torch::manual_seed(5);
    const at::Tensor leaf = on_device(at::randn({kRows, 3 * kBlockWidth})).requires_grad_();
    const auto parts = (leaf * 2).chunk(3, 1);
    const at::Tensor bias =
        on_device(at::arange(kBlockWidth, at::kFloat)).expand({kRows, kBlockWidth});
    const at::Tensor result = activation_checkpoint(
        ActivationCheckpointOptions{offload},
        [](const std::vector<at::Tensor>& in, const at::Tensor& more) {
          EXPECT_EQ(in[0].stride(0), 3 * kBlockWidth);
          EXPECT_EQ(more.stride(0), 0);
          return in[0] * in[1].sigmoid() + in[2] * more;
        },
        parts, bias);
    torch::autograd::backward({result.sum()});
    gradients.push_back(leaf.grad().cpu());
  }
  EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
}

TEST_F(ActivationOffloading, InputChangedInPlaceBeforeBackward_IsAnError) {
  const at::Tensor weight = on_device(at::ones({kBlockWidth})).requires_grad_();
  at::Tensor x = on_device(at::randn({kRows, kBlockWidth}));
  const at::Tensor result = activation_checkpoint(
      ActivationCheckpointOptions{true}, [&](const at::Tensor& in) { return in * weight; }, x);
  x.add_(1);
  expect_error(ErrorCode::kUsage, "backward needs an input of shape [6, 16] as it was in forward",
               [&] { torch::autograd::backward({result.sum()}); });
}

TEST_F(ActivationOffloading, InputOfAUnitChangedInPlaceBeforeBackward_IsAnError) {
  torch::manual_seed(3);
  Tower tower;
  const strategy::Model model = described(tower);
  rules_.leave_in_place(model);
  rules_.set_default(true);
  ForwardRecorder::of_this_thread().watch(model, {"blocks.*"});
  at::Tensor all = on_device(at::rand({kRows, kBlockWidth}));
  const at::Tensor loss =
      tower->forward(on_device(at::randn({kRows, kBlockWidth})), all, How::kConfigured, {});
  all.add_(1);
  expect_error(ErrorCode::kUsage, "of unit 'blocks.2' as it was in forward",
               [&] { torch::autograd::backward({loss}); });
}

TEST_F(ActivationOffloading, ParametersAndBuffers_StayWhereTheyAre) {
  Tower tower;
  const at::Tensor weight = tower->blocks[0]->as<ScaledBlock>()->in;
  const at::Tensor buffer = tower->blocks[0]->as<ScaledBlock>()->scale;
  EXPECT_FALSE(rules_.moves(weight));
  EXPECT_FALSE(rules_.moves(weight.t()));
  EXPECT_TRUE(rules_.moves(buffer));  // its use was not declared
  rules_.leave_in_place(described(tower));
  EXPECT_FALSE(rules_.moves(weight.detach()));
  EXPECT_FALSE(rules_.moves(buffer));
  EXPECT_FALSE(rules_.moves(buffer.narrow(0, 1, 2)));
  EXPECT_TRUE(rules_.moves(weight * 2));
  EXPECT_FALSE(rules_.moves(at::Tensor()));
  EXPECT_FALSE(rules_.moves(at::ones({2})));
  EXPECT_FALSE(rules_.moves(on_device(at::ones({0}))));
}

TEST_F(ActivationOffloading, TensorsOnTheCpu_StayAndThatIsSaidOnce) {
  const auto train = [](bool offload) {
    torch::manual_seed(3);
    const at::Tensor weight = at::randn({kBlockWidth, kBlockWidth}).requires_grad_();
    at::Tensor x = at::randn({kRows, kBlockWidth});
    const auto layer = [&](const at::Tensor& in) { return at::linear(in, weight).tanh(); };
    for (int i = 0; i < 3; ++i) {
      x = activation_checkpoint(ActivationCheckpointOptions{offload}, layer, x);
    }
    torch::autograd::backward({x.sum()});
    return weight.grad();
  };
  const at::Tensor expected = train(false);
  ::testing::internal::CaptureStderr();
  const at::Tensor gradient = train(true);
  {
    Accelerator accelerator(AcceleratorOptions().set("memory.offload_activations", true));
    EXPECT_TRUE(rules_.is_default());
    nn::Linear model(2, 2);
    accelerator.prepare(model);
  }
  EXPECT_FALSE(rules_.is_default());
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(at::equal(expected, gradient));
  const std::string line = "there is nothing to offload";
  ASSERT_NE(said.find(line), std::string::npos) << said;
  EXPECT_EQ(said.find(line), said.rfind(line)) << said;
}

}  // namespace
}  // namespace coupler::activations
