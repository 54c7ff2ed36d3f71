// The hook of a divided weight, whose products overlap with what ranks exchange: modules see the
// whole layer's results, and the node's own operations on the weight do not come to the hook again.
#include "tensor_parallel/divided_layer.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "activations/forward_recorder.h"
#include "core/comm/ranks.h"
#include "refusal.h"
#include "residency/product.h"
#include "tensors/divided_values.h"

namespace coupler::tensor_parallel {
namespace {

at::Tensor sines(at::IntArrayRef sizes) {
  return at::arange(sizes[0] * sizes[1], at::kFloat).sin().view(sizes);
}

at::Tensor part_of(const at::Tensor& whole, int64_t dim, const comm::Communicator& of_rank) {
  const int64_t size = whole.size(dim) / of_rank.size();
  const at::Tensor part = whole.narrow(dim, size * of_rank.rank(), size);
  return part.detach().clone(at::MemoryFormat::Contiguous).requires_grad_(true);
}

std::shared_ptr<DividedLayer> hook_of(const at::Tensor& weight, sharding::TensorStyle style,
                                      const Group& group, int64_t overlap_chunks = 3,
                                      std::optional<int64_t> sequence = std::nullopt) {
  DividedWeight use;
  use.weight = weight;
  use.overlap_chunks = overlap_chunks;
  use.sequence = sequence;
  use.name = use.product_name = "layer";
  use.product_line = "the plan: \"layer = its style\"";
  use.product.style = style;
  use.divided = style != sharding::TensorStyle::kShared;
  auto hook = std::make_shared<DividedLayer>(use, group);
  residency::add_hook(weight, hook);
  return hook;
}

class Doubled : public residency::ParameterHook {
 public:
  Doubled() : ParameterHook(residency::HookPlace::kResult) {}
  void around(const c10::OperatorHandle&, torch::jit::Stack& stack,
              const std::function<void()>& run) override {
    run();
    stack.back() = stack.back().toTensor().mul(2);
  }
};

// As LoRA's layers are, if they are attached after prepare.
TEST(DividedLayer, HookInside_IsCalled) {
  const at::Tensor x = sines({5, 4}), up = sines({8, 4});
  testing::expect_no_error(testing::run_ranks(2, [&](comm::Communicator& of_rank) {
    const at::Tensor own = part_of(up, 0, of_rank);
    const auto hook =
        hook_of(own, sharding::TensorStyle::kColwise, Group(&of_rank, [](comm::Communicator*) {}));
    const auto doubled = std::make_shared<Doubled>();
    residency::add_hook(own, doubled);
    const at::Tensor expected = part_of(at::linear(x, up).t().contiguous(), 0, of_rank).t().mul(2);
    EXPECT_TRUE(at::allclose(at::linear(x, own), expected, 1e-4, 1e-5));
  }));
}

TEST(DividedLayer, Overlapped_UpAndDown_AreTheWholeLayers) {
  const at::Tensor x = sines({5, 4}), up = sines({8, 4}), down = sines({6, 8}),
                   bias = sines({1, 6});
  const auto whole_of = [](const at::Tensor& whole) {
    return whole.detach().clone().requires_grad_(true);
  };
  const at::Tensor whole_x = whole_of(x), whole_up = whole_of(up), whole_down = whole_of(down);
  const at::Tensor expected =
      at::linear(at::linear(whole_x, whole_up).tanh(), whole_down, bias.flatten());
  expected.square().sum().backward();
  testing::expect_no_error(testing::run_ranks(2, [&](comm::Communicator& of_rank) {
    const Group group(&of_rank, [](comm::Communicator*) {});
    const at::Tensor own_x = whole_of(x), own_up = part_of(up, 0, of_rank),
                     own_down = part_of(down, 1, of_rank);
    const auto first = hook_of(own_up, sharding::TensorStyle::kColwise, group),
               second = hook_of(own_down, sharding::TensorStyle::kRowwise, group);
    const at::Tensor y = at::linear(at::linear(own_x, own_up).tanh(), own_down, bias.flatten());
    EXPECT_TRUE(at::allclose(y, expected, 1e-4, 1e-5));
    y.square().sum().backward();
    EXPECT_TRUE(at::allclose(own_x.grad(), whole_x.grad(), 1e-4, 1e-5));
    EXPECT_TRUE(at::allclose(own_up.grad(), part_of(whole_up.grad(), 0, of_rank), 1e-4, 1e-5));
    EXPECT_TRUE(at::allclose(own_down.grad(), part_of(whole_down.grad(), 1, of_rank), 1e-4, 1e-5));
  }));
}

// LibTorch's errors name sizes that the program does not have.
TEST(DividedLayer, WhatNeedsAllOutputs_IsToldTheLayerAndItsLine) {
  const Group group = comm::Communicator::made_up("layers", 2);
  const at::Tensor x = sines({5, 8}), whole = sines({8, 8}), norm = at::ones({8});
  const auto expect_explained = [&](const std::function<void(const at::Tensor&)>& use) {
    const at::Tensor own = sines({4, 8}).requires_grad_(true);
    const auto hook = hook_of(own, sharding::TensorStyle::kColwise, group, 1);
    testing::expect_error(ErrorCode::kInvalidArgument,
                          "'layer' is divided over 2 ranks (the plan: \"layer = its style\"), so "
                          "that each has 4 of its 8 outputs, but aten::",
                          [&] { use(at::linear(x, own)); });
  };
  expect_explained([&](const at::Tensor& part) { x + part; });
  expect_explained([&](const at::Tensor& part) { x + at::gelu(part).mul(2); });
  expect_explained([&](const at::Tensor& part) { at::linear(part.tanh(), whole); });
  expect_explained([&](const at::Tensor& part) { at::layer_norm(part.relu_(), {8}, norm); });
}

TEST(DividedLayer, LossesThatTakeAPartOfTheClassesForAll_AreRefused) {
  const Group group = comm::Communicator::made_up("layers", 2);
  const at::Tensor x = sines({5, 8}), targets = at::zeros({5}, at::kLong);
  const auto expect_refused = [&](const std::function<void(const at::Tensor&)>& use) {
    const at::Tensor own = sines({4, 8}).requires_grad_(true);
    const auto hook = hook_of(own, sharding::TensorStyle::kVocab, group, 1);
    testing::expect_error(ErrorCode::kInvalidArgument, "so that a rank has 4 of 8 classes",
                          [&] { use(at::linear(x, own)); });
  };
  expect_refused([&](const at::Tensor& logits) { at::cross_entropy_loss(logits, targets); });
  expect_refused([](const at::Tensor& logits) { logits.view({5, 1, 4}).log_softmax(-1); });
}

// What follows a layer that made whole values is the program's own business.
TEST(DividedLayer, ErrorsAfterWholeValues_AreLeftAsTheyAre) {
  const Group group = comm::Communicator::made_up("layers", 2);
  const at::Tensor x = sines({5, 8}), up = sines({4, 8}).requires_grad_(true),
                   down = sines({8, 4}).requires_grad_(true);
  const auto first = hook_of(up, sharding::TensorStyle::kColwise, group, 1),
             second = hook_of(down, sharding::TensorStyle::kRowwise, group, 1);
  const at::Tensor part = at::linear(x, up), made = at::linear(part, down);
  EXPECT_TRUE(made.sizes() == x.sizes());
  EXPECT_THROW(part + x, c10::Error);
  EXPECT_THROW(made + sines({5, 3}), c10::Error);
}

// Which tensors products get. The weak pointers keep their addresses from being reused.
class InputsOfProducts : public residency::ParameterHook {
 public:
  InputsOfProducts() : ParameterHook(residency::HookPlace::kValues) {}
  void around(const c10::OperatorHandle& op, torch::jit::Stack& stack,
              const std::function<void()>& run) override {
    const auto product = residency::product_of(op, stack);
    if (product && !residency::in_backward()) {
      const auto input = product->x.getIntrusivePtr();
      seen.push_back(input.get());
      kept_.emplace_back(input);
    }
    run();
  }
  std::vector<const c10::TensorImpl*> seen;

 private:
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> kept_;
};

struct TwoOfOneInputImpl : torch::nn::Module {
  TwoOfOneInputImpl() {
    const torch::nn::LinearOptions options = torch::nn::LinearOptions(4, 4).bias(false);
    first = register_module("first", torch::nn::Linear(options));
    second = register_module("second", torch::nn::Linear(options));
  }
  at::Tensor forward(const at::Tensor& x) { return first->forward(x) + second->forward(x); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(TwoOfOneInput);

struct NetOfTwoImpl : torch::nn::Module {
  NetOfTwoImpl() {
    two = register_module("two", TwoOfOneInput());
    last = register_module("last", torch::nn::Linear(4, 1));
  }
  TwoOfOneInput two{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(NetOfTwo);

// Backward exchanges once for what layers share.
TEST(DividedLayer, LayersThatReshapeTheirInput_ShareIt) {
  const Group group = comm::Communicator::made_up("layers", 2);
  TwoOfOneInput two;
  const auto inputs = std::make_shared<InputsOfProducts>();
  std::vector<std::shared_ptr<DividedLayer>> hooks;
  for (const at::Tensor& weight : two->parameters()) {
    hooks.push_back(hook_of(weight, sharding::TensorStyle::kColwise, group, 1));
    residency::add_hook(weight, inputs);
  }
  const at::Tensor x = sines({6, 4}).view({2, 3, 4}).requires_grad_(true);
  const at::Tensor y = two->forward(x.mul(2));
  ASSERT_EQ(inputs->seen.size(), 2u);
  EXPECT_EQ(inputs->seen[0], inputs->seen[1]);
}

TEST(DividedLayer, LayersOfACheckpointedUnit_ShareTheirInputBothTimes) {
  const Group group = comm::Communicator::made_up("layers", 2);
  NetOfTwo net;
  const auto inputs = std::make_shared<InputsOfProducts>();
  std::vector<std::shared_ptr<DividedLayer>> hooks;
  for (const at::Tensor& weight : net->two->parameters()) {
    hooks.push_back(hook_of(weight, sharding::TensorStyle::kColwise, group, 1, /*sequence=*/1));
    residency::add_hook(weight, inputs);
  }
  auto& recorder = activations::ForwardRecorder::of_this_thread();
  recorder.watch(strategy::describe(*net), {"two"});
  const at::Tensor x = sines({6, 4}).view({2, 3, 4}).requires_grad_(true);
  const at::Tensor y = net->last->forward(net->two->forward(x.mul(2)));
  ASSERT_EQ(inputs->seen.size(), 2u);
  EXPECT_EQ(inputs->seen[0], inputs->seen[1]) << "in forward";
  y.sum().backward();
  recorder.forget_all();
  ASSERT_EQ(inputs->seen.size(), 4u) << "not computed again";
  EXPECT_NE(inputs->seen[0], inputs->seen[2]);
  EXPECT_EQ(inputs->seen[2], inputs->seen[3]) << "in backward";
}

// What follows would otherwise drop other values on each rank, whole ones too.
TEST(DividedLayer, ForwardThatThrows_LeavesNoDividedValues) {
  const Group group = comm::Communicator::made_up("layers", 2);
  const at::Tensor x = sines({5, 4}), weight = sines({8, 4}).requires_grad_(true);
  const auto hook = hook_of(weight, sharding::TensorStyle::kColwise, group, 1);
  const auto forward = [&](bool fails) {
    const at::Tensor up = at::linear(x, weight);
    if (fails) throw std::runtime_error("the module's own");
    return up.tanh();
  };
  EXPECT_THROW(forward(true), std::runtime_error);
  EXPECT_EQ(tensors::divided_values(), nullptr);
  at::Tensor up = forward(false);
  EXPECT_NE(tensors::divided_values(), nullptr);
  up.sum().backward();
  EXPECT_NE(tensors::divided_values(), nullptr) << "its graph is still there";
  up.reset();
  EXPECT_EQ(tensors::divided_values(), nullptr);
}

// Autograd gives both summands of a sum the same gradient, in the same memory.
TEST(DividedLayer, SumOfSharedLayers_GetsTheSumOfGradientsOnce) {
  const at::Tensor x = sines({5, 4}), weight = sines({3, 4});
  testing::expect_no_error(testing::run_ranks(2, [&](comm::Communicator& of_rank) {
    const Group group(&of_rank, [](comm::Communicator*) {});
    const at::Tensor first = weight.clone().requires_grad_(true),
                     second = weight.mul(2).requires_grad_(true);
    const auto of_first = hook_of(first, sharding::TensorStyle::kShared, group),
               of_second = hook_of(second, sharding::TensorStyle::kShared, group);
    const at::Tensor y = at::linear(x, first) + at::linear(x, second);
    y.square().sum().mul(of_rank.rank() + 1).backward();
    const at::Tensor expected = y.detach().mul(2 * (1 + 2)).t().matmul(x);
    EXPECT_TRUE(at::allclose(first.grad(), expected, 1e-4, 1e-5));
    EXPECT_TRUE(at::allclose(second.grad(), expected, 1e-4, 1e-5));
  }));
}

}  // namespace
}  // namespace coupler::tensor_parallel
