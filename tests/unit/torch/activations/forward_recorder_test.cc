// Checkpointed modules against equal ones that keep everything: gradients equal to the last bit,
// and intermediate results freed after forward.
#include "activations/forward_recorder.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <coupler/autocast.h>
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace coupler::activations {
namespace {

namespace nn = torch::nn;

constexpr int64_t kTowerWidth = 16, kRows = 6, kBlocks = 4;

// A block's result, observed from outside: whether its memory still exists.
using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
struct Traces {
  void add(const at::Tensor& tensor) {
    const c10::Storage& storage = tensor.storage();
    weak.emplace_back(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage.unsafeGetStorageImpl()));
  }
  size_t alive() const {
    size_t count = 0;
    for (const Weak& one : weak) count += one.expired() ? 0 : 1;
    return count;
  }
  std::vector<Weak> weak;
};

using Body = std::function<at::Tensor(nn::Module& block, const at::Tensor& input, Traces& traces)>;

struct BlockImpl : nn::Module {
  explicit BlockImpl(Body what) : body(std::move(what)) {
    register_module("in", in = nn::Linear(kTowerWidth, 2 * kTowerWidth));
    register_module("out", out = nn::Linear(2 * kTowerWidth, kTowerWidth));
    register_module("norm", norm = nn::LayerNorm(nn::LayerNormOptions({kTowerWidth})));
    register_module("batch_norm", batch_norm = nn::BatchNorm1d(2 * kTowerWidth));
    register_module("convolution", convolution = nn::Conv1d(nn::Conv1dOptions(1, 1, 3).padding(1)));
    scale = register_parameter("scale", at::ones({2 * kTowerWidth}));
  }
  at::Tensor forward(const at::Tensor& input) { return body(*this, input, traces); }

  Body body;
  nn::Linear in = nullptr, out = nullptr;
  nn::LayerNorm norm = nullptr;
  nn::BatchNorm1d batch_norm = nullptr;
  nn::Conv1d convolution = nullptr;
  at::Tensor scale;
  Traces traces;
};
TORCH_MODULE(Block);

struct TowerImpl : nn::Module {
  explicit TowerImpl(const Body& body) {
    register_module("first", first = nn::Linear(kTowerWidth, kTowerWidth));
    register_module("blocks", blocks = nn::ModuleList());
    for (int64_t i = 0; i < kBlocks; ++i) blocks->push_back(Block(body));
    register_module("last", last = nn::Linear(kTowerWidth, 3));
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = first(input);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return last(x).pow(2).mean();
  }
  size_t alive() const {
    size_t count = 0;
    for (const auto& block : *blocks) count += block->as<Block>()->traces.alive();
    return count;
  }
  nn::Linear first = nullptr, last = nullptr;
  nn::ModuleList blocks;
};
TORCH_MODULE(Tower);

BlockImpl& of(nn::Module& module) { return dynamic_cast<BlockImpl&>(module); }

// Its gradient is doubled, to show that it is used.
struct Doubled : torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input) {
    const at::Tensor result = input.exp().add(1);
    context->save_for_backward({result});
    return result;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * context->get_saved_variables()[0] * 2};
  }
};

struct BlockCase {
  const char* name;
  bool lets_go;  // whether it frees a block's results
  Body body;
};
std::ostream& operator<<(std::ostream& out, const BlockCase& one) { return out << one.name; }

const std::vector<BlockCase>& cases() {
  static const std::vector<BlockCase> all = {
      {"linear_gelu", true,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const at::Tensor hidden = at::gelu(of(m).in(x));
         traces.add(hidden);
         return x + of(m).out(hidden);
       }},
      {"layer_norm", true,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const at::Tensor normed = of(m).norm(x);
         traces.add(normed);
         return x + of(m).out(at::relu(of(m).in(normed)));
       }},
      {"dropout", true,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const at::Tensor hidden = at::dropout(at::relu(of(m).in(x)), 0.5, true);
         traces.add(hidden);
         return x + at::dropout(of(m).out(hidden), 0.1, true);
       }},
      {"batch_norm", true,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const at::Tensor hidden = at::tanh(of(m).batch_norm(of(m).in(x)));
         traces.add(hidden);
         return x + of(m).out(hidden);
       }},
      {"convolution", true,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const at::Tensor hidden = at::relu(of(m).convolution(of(m).in(x).unsqueeze(1)));
         traces.add(hidden);
         return x + of(m).out(hidden.squeeze(1));
       }},
      {"in_place_inside", true,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         at::Tensor hidden = of(m).in(x);
         hidden.relu_();
         hidden = hidden * of(m).scale;
         hidden.add_(1);
         traces.add(hidden);
         return x + of(m).out(hidden.sigmoid_());
       }},
      {"views", true,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const auto halves = of(m).in(x).chunk(2, -1);
         const at::Tensor product = halves[0] * halves[1].sigmoid();
         const at::Tensor twice = at::cat({product, product}, 1);
         traces.add(twice);
         return x + product.t().contiguous().t() * twice.narrow(1, 3, kTowerWidth);
       }},
      {"attention", true,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const at::Tensor q = of(m).in(x).view({1, 2, kRows, kTowerWidth});
         const at::Tensor y = at::scaled_dot_product_attention(q, q * 2, q + 1);
         traces.add(y);
         return x + of(m).out(y.reshape({kRows, 2 * kTowerWidth}));
       }},
      {"own_function", false,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const at::Tensor hidden = Doubled::apply(of(m).in(x)*0.1);
         traces.add(hidden);
         return x + of(m).out(at::relu(hidden) * of(m).scale);
       }},
      {"in_place_outside", true,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const at::Tensor hidden = at::relu(of(m).in(x));
         traces.add(hidden);
         at::Tensor outside = of(m).batch_norm->running_mean;
         outside.add_(hidden.detach().mean());
         return x + of(m).out(hidden * outside.clone());
       }},
      // Nothing can be recomputed from an input that has changed.
      {"in_place_on_an_input", false,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const at::Tensor outside = of(m).batch_norm->running_var;
         const at::Tensor hidden = at::relu(of(m).in(x) * (outside * 2));
         traces.add(hidden);
         outside.add_(0.5);
         return x + of(m).out(hidden);
       }},
      {"no_grad_inside", true,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const at::Tensor hidden = of(m).in(x);
         at::Tensor mask;
         {
           const at::NoGradGuard no_grad;
           mask = (hidden > 0).to(at::kFloat);
         }
         const at::Tensor masked = hidden * mask;
         traces.add(masked);
         return x + of(m).out(masked.sin());
       }},
      {"filled_without_operations", true,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const at::Tensor factors = at::empty({2 * kTowerWidth});
         std::iota(factors.data_ptr<float>(), factors.data_ptr<float>() + factors.numel(), 1.f);
         const at::Tensor hidden = at::tanh(of(m).in(x)*factors.sqrt());
         traces.add(hidden);
         return x + of(m).out(hidden);
       }},
      {"own_generator", true,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         auto generator = at::detail::createCPUGenerator(7);
         at::randn({3}, generator);
         const at::Tensor noise = at::randn({2 * kTowerWidth}, generator, at::TensorOptions());
         const at::Tensor hidden = at::tanh(of(m).in(x)*noise);
         traces.add(hidden);
         return x + of(m).out(hidden);
       }},
      {"own_generator_in_place", false,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const at::Tensor mask = at::empty_like(of(m).scale), view = mask.view({-1, 1});
         mask.bernoulli_(0.5, at::detail::createCPUGenerator(7));
         const at::Tensor hidden = at::tanh(of(m).in(x)*view.squeeze(1));
         traces.add(hidden);
         return x + of(m).out(hidden);
       }},
      {"drawn_into_memory", false,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const at::Tensor noise = at::empty({2 * kTowerWidth}).normal_();
         const at::Tensor hidden = at::dropout(at::tanh(of(m).in(x)*noise), 0.5, true);
         traces.add(hidden);
         return x + of(m).out(hidden);
       }},
      {"autocast", true,
       [](nn::Module& m, const at::Tensor& x, Traces& traces) {
         const AutocastScope scope(AutocastSettings{});
         const at::Tensor hidden = at::gelu(of(m).in(x));
         traces.add(hidden);
         return x + of(m).out(hidden).to(at::kFloat);
       }},
  };
  return all;
}

struct TowerSteps {
  std::vector<at::Tensor> gradients, buffers;
  size_t alive = 0;
  at::Tensor next_random;
};

// Two steps without an optimizer: gradients accumulate.
TowerSteps run_tower(const Body& body, bool checkpointed, bool retain = false) {
  torch::manual_seed(3);
  Tower tower(body);
  ForwardRecorder& recorder = ForwardRecorder::of_this_thread();
  if (checkpointed) recorder.watch(strategy::describe(*tower), {"blocks.*"});
  TowerSteps outcome;
  for (int step = 0; step < 2; ++step) {
    const at::Tensor loss = tower->forward(at::randn({kRows, kTowerWidth}));
    outcome.alive = tower->alive();
    if (retain) torch::autograd::backward({loss}, {}, /*retain_graph=*/true);
    torch::autograd::backward({loss});
    {
      const at::NoGradGuard no_grad;
      tower->forward(at::ones({kRows, kTowerWidth}));
    }
  }
  recorder.forget_all();
  for (const at::Tensor& parameter : tower->parameters()) {
    outcome.gradients.push_back(parameter.grad());
  }
  for (const at::Tensor& buffer : tower->buffers()) outcome.buffers.push_back(buffer.clone());
  outcome.next_random = at::randn({4});
  return outcome;
}

void expect_same_steps(const TowerSteps& one, const TowerSteps& other) {
  ASSERT_EQ(one.gradients.size(), other.gradients.size());
  for (size_t i = 0; i < one.gradients.size(); ++i) {
    ASSERT_EQ(one.gradients[i].defined(), other.gradients[i].defined()) << i;
    if (one.gradients[i].defined()) {
      EXPECT_TRUE(at::equal(one.gradients[i], other.gradients[i])) << "gradient " << i;
    }
  }
  for (size_t i = 0; i < one.buffers.size(); ++i) {
    EXPECT_TRUE(at::equal(one.buffers[i], other.buffers[i])) << "buffer " << i;
  }
  EXPECT_TRUE(at::equal(one.next_random, other.next_random));
}

class Checkpointed : public ::testing::TestWithParam<BlockCase> {};

TEST_P(Checkpointed, HasTheSameGradients_AndLetsGo) {
  const TowerSteps plain = run_tower(GetParam().body, false),
                   other = run_tower(GetParam().body, true);
  expect_same_steps(plain, other);
  // Everything except what the test itself holds of the first step's graph.
  EXPECT_EQ(plain.alive, static_cast<size_t>(kBlocks));
  if (GetParam().lets_go) {
    EXPECT_EQ(other.alive, 0u);
  }
}

TEST_P(Checkpointed, GoesBackwardTwice) {
  expect_same_steps(run_tower(GetParam().body, false, true),
                    run_tower(GetParam().body, true, true));
}

INSTANTIATE_TEST_SUITE_P(Blocks, Checkpointed, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(ForwardRecorder, GivesGradientsOfGradients) {
  const auto penalty = [](bool checkpointed) {
    torch::manual_seed(3);
    Tower tower(cases()[0].body);
    if (checkpointed)
      ForwardRecorder::of_this_thread().watch(strategy::describe(*tower), {"blocks.*"});
    const at::Tensor input = at::randn({kRows, kTowerWidth}).requires_grad_(true);
    const at::Tensor loss = tower->forward(input);
    const at::Tensor gradient =
        torch::autograd::grad({loss}, {input}, {}, std::nullopt, /*create_graph=*/true)[0];
    torch::autograd::backward({gradient.pow(2).sum()});
    ForwardRecorder::of_this_thread().forget_all();
    return tower->first->weight.grad();
  };
  EXPECT_TRUE(at::equal(penalty(false), penalty(true)));
}

TEST(ForwardRecorder, SaysThatAnInputWasChangedBeforeBackward) {
  torch::manual_seed(3);
  Tower tower(cases()[0].body);
  ForwardRecorder::of_this_thread().watch(strategy::describe(*tower), {"blocks.*"});
  const at::Tensor loss = tower->forward(at::randn({kRows, kTowerWidth}));
  {
    const at::NoGradGuard no_grad;
    tower->blocks[1]->as<Block>()->in->weight.add_(1);
  }
  try {
    torch::autograd::backward({loss});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("unit 'blocks.1'"), std::string::npos) << error.what();
  }
  ForwardRecorder::of_this_thread().forget_all();
}

TEST(ForwardRecorder, NamesAPatternThatMatchesNothing) {
  Tower tower(cases()[0].body);
  try {
    ForwardRecorder::of_this_thread().watch(strategy::describe(*tower), {"blocks.*", "layers.*"});
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'layers.*' matches no module"), std::string::npos) << text;
    EXPECT_NE(text.find("its modules are first, blocks, blocks.0"), std::string::npos) << text;
  }
  ForwardRecorder::of_this_thread().forget_all();
}

}  // namespace
}  // namespace coupler::activations
