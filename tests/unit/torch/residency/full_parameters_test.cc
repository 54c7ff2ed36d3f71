// Writes to parameters: refused outside a FullParameters scope, kept or dropped inside. And units
// that are gathered in a dtype other than the stored one.
#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <sstream>

#include "comparison.h"
#include "residency/intercept.h"

namespace coupler::residency {
namespace {

namespace nn = torch::nn;
using namespace testing;  // NOLINT(google-build-using-namespace): comparison.h

struct Pair : nn::Module {
  nn::Linear first = register_module("first", nn::Linear(6, 6));
  nn::Linear second = register_module("second", nn::Linear(6, 3));
};

struct ManagedPair {
  Pair pair;
  at::Tensor weight_before = pair.first->weight.detach().clone();
  Managed managed{strategy::describe(pair)};
};

// Runs a write that must be refused and returns the message.
std::string refused(const std::function<void()>& write) {
  const torch::NoGradGuard no_grad;
  try {
    write();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_NE(error.detail().hint.find("summon_full_parameters"), std::string::npos);
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

void expect_names(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
}

TEST(FullParameters, WritesOutside_RefusedNamingWhatAndWhere) {
  ManagedPair test;
  const at::Tensor weight = test.pair.first->weight;
  expect_names(refused([&] { weight.zero_(); }),
               {"aten::zero_", "'first.weight'", "unit 'first'", "summon_full_parameters"});
  expect_names(refused([&] { weight.copy_(torch::ones({6, 6})); }), {"copy_", "'first.weight'"});
  expect_names(refused([&] { weight.t()[1].add_(1); }), {"add_", "'first.weight'"});
  expect_names(refused([&] { test.pair.second->bias.detach().fill_(1); }),
               {"fill_", "'second.bias'", "unit 'second'"});
  expect_names(refused([&] { torch::mul_out(const_cast<at::Tensor&>(weight), weight, weight); }),
               {"mul", "'first.weight'"});
  expect_names(refused([&] {
                 torch::_foreach_mul_({weight, test.pair.second->weight}, 2.0);
               }),
               {"_foreach_mul_", "'first.weight'"});
  expect_names(refused([&] { nn::init::xavier_uniform_(weight); }), {"uniform_"});
  expect_names(refused([&] { weight.detach().index_put_({0}, 1.0); }), {"'first.weight'"});
  EXPECT_TRUE(torch::equal(weight, test.weight_before));
  for (const auto& unit : test.managed.residency().units()) EXPECT_EQ(unit->pins.load(), 0);
}

TEST(FullParameters, OptimizerThatWasNotPrepared_Refused) {
  ManagedPair test;
  torch::optim::SGD optimizer(test.pair.parameters(), 0.1);
  test.pair.second(test.pair.first(torch::ones({2, 6}))).sum().backward();
  expect_names(refused([&] { optimizer.step(); }), {"'first.weight'", "accelerator.prepare"});
}

// It renormalizes rows in forward.
TEST(FullParameters, EmbeddingWithMaxNorm_RefusedInForward) {
  nn::Embedding embedding(nn::EmbeddingOptions(5, 3).max_norm(1.0));
  Managed managed(strategy::describe(*embedding));
  expect_names(refused([&] {
                 embedding(torch::tensor({1, 2}));
               }),
               {"embedding_renorm_", "'weight'"});
}

TEST(FullParameters, Writeback_StaysAfterTheScope) {
  ManagedPair test;
  const at::Tensor& weight = test.pair.first->weight;
  at::Tensor average = torch::zeros({6, 6}), expected;
  {
    const auto scope = summon_full_parameters(test.pair);
    EXPECT_EQ(test.managed.resident_units(), 2u);
    const torch::NoGradGuard no_grad;
    nn::init::xavier_uniform_(weight);
    test.pair.first->bias.copy_(torch::arange(6));
    average.mul_(0.9).add_(weight, 0.1);
    weight.data_ptr<float>()[7] = 42;
    weight.accessor<float, 2>()[0][3] = 43;
    test.pair.second->weight.detach().fill_(0.5);
    expected = weight.clone();
    std::ostringstream text;
    text << test.pair.first->bias;
    EXPECT_NE(text.str().find(" 0\n 1\n 2\n"), std::string::npos) << text.str();
  }
  EXPECT_EQ(test.managed.resident_units(), 0u);
  EXPECT_EQ(expected.view({-1})[7].item<float>(), 42);
  EXPECT_EQ(expected[0][3].item<float>(), 43);
  EXPECT_TRUE(torch::equal(weight, expected));
  EXPECT_FALSE(torch::equal(weight, test.weight_before));
  EXPECT_TRUE(torch::equal(test.pair.first->bias, torch::arange(6).to(at::kFloat)));
  EXPECT_TRUE(torch::equal(test.pair.second->weight, torch::full({3, 6}, 0.5f)));
  EXPECT_TRUE(torch::equal(average, expected * 0.1f) ||
              torch::allclose(average[5], expected[5] * 0.1f));
  EXPECT_FALSE(refused([&] { weight.zero_(); }).empty()) << "the scope has ended";
}

TEST(FullParameters, NoWriteback_ChangesAreLost) {
  ManagedPair test;
  {
    const auto scope = summon_full_parameters(test.pair, /*writeback=*/false);
    const torch::NoGradGuard no_grad;
    test.pair.first->weight.zero_();
    EXPECT_EQ(test.pair.first->weight.abs().sum().item<float>(), 0);
  }
  EXPECT_TRUE(torch::equal(test.pair.first->weight, test.weight_before));
}

TEST(FullParameters, ModuleInside_OnlyItsUnits) {
  ManagedPair test;
  const auto scope = summon_full_parameters(test.pair.second);
  EXPECT_EQ(test.managed.resident_units(), 1u);
  expect_names(refused([&] { test.pair.first->weight.zero_(); }), {"unit 'first'"});
  const torch::NoGradGuard no_grad;
  test.pair.second->weight.zero_();
}

TEST(FullParameters, Nested_InnerEndsOuterStillWrites) {
  ManagedPair test;
  {
    const auto outer = summon_full_parameters(test.pair);
    const torch::NoGradGuard no_grad;
    { const auto inner = summon_full_parameters(test.pair.first); }
    EXPECT_TRUE(test.managed.unit("first").resident.load());
    test.pair.first->weight.zero_();
  }
  EXPECT_EQ(test.pair.first->weight.abs().sum().item<float>(), 0);
}

TEST(FullParameters, SourceFails_ThrowsAndNothingStaysPinned) {
  ManagedPair test;
  test.managed.memory.before_fill = [](size_t unit) {
    if (unit == 1) throw Error(ErrorCode::kPeerLost, "unit 'second' is gone");
  };
  EXPECT_THROW(static_cast<void>(summon_full_parameters(test.pair)), Error);
  for (const auto& unit : test.managed.residency().units()) {
    EXPECT_EQ(unit->pins.load(), 0);
    EXPECT_EQ(unit->writable.load(), 0);
  }
  test.managed.memory.before_fill = {};
  EXPECT_TRUE(torch::equal(test.pair.first->weight, test.weight_before));
}

TEST(FullParameters, PlainModel_DoesNothing) {
  Pair pair;
  const auto scope = summon_full_parameters(pair);
  const torch::NoGradGuard no_grad;
  pair.first->weight.zero_();
  EXPECT_EQ(pair.first->weight.abs().sum().item<float>(), 0);
}

TEST(FullParameters, DataPointerOutside_LibTorchSaysSo) {
  ManagedPair test;
  EXPECT_THROW(test.pair.first->weight.data_ptr<float>(), c10::Error);
  EXPECT_THROW((test.pair.first->weight.accessor<float, 2>()), c10::Error);
}

// ---- Gathered in another dtype ----

constexpr ManagedOptions kBf16 = {.compute_type = at::kBFloat16, .output_type = at::kFloat};
// Relative to the largest value: bf16 has 8 bits, and the errors of several roundings add up.
constexpr double kBf16Bound = 0.04;

void expect_close_in_bf16(const Make& make, double bound = kBf16Bound) {
  const Subject plain = make(), subject = make();
  Managed managed(strategy::describe(*subject.module), kBf16);
  for (int pass = 0; pass < 2; ++pass) {
    const Outcome expected = run(plain), actual = run(subject);
    expect_same(actual, expected, bound);
    for (size_t i = 0; i < actual.size(); ++i) {
      const auto& [name, value] = actual[i];
      if (!value.defined() || !value.is_floating_point()) continue;
      const bool of_parameter = name.starts_with("gradient of") && name != "gradient of an input";
      EXPECT_EQ(value.scalar_type(), of_parameter ? at::kBFloat16 : at::kFloat) << name;
    }
    managed.residency().end_of_pass();
  }
}

template <class Holder>
Make used_as_is(Holder (*make)(), std::vector<int64_t> sizes) {
  return [make, sizes] {
    torch::manual_seed(3);
    Holder holder = make();
    return Subject{holder.ptr(), [holder, sizes](Inputs& inputs) mutable {
                     return Tensors{holder->forward(inputs.real(sizes))};
                   }};
  };
}

TEST(ComputeType, Linear_WithinBf16) {
  expect_close_in_bf16(used_as_is(+[] { return nn::Linear(16, 8); }, {4, 16}));
}

// No kinks between the layers: a value that different rounding moves to the other side of a kink is
// not an error.
TEST(ComputeType, ConvolutionsAndPrelu_WithinBf16) {
  expect_close_in_bf16(used_as_is(
      +[] { return nn::Sequential(nn::Conv2d(3, 4, 3), nn::Tanh(), nn::ConvTranspose2d(4, 2, 2)); },
      {2, 3, 6, 6}));
  expect_close_in_bf16(
      used_as_is(+[] { return nn::PReLU(nn::PReLUOptions().num_parameters(4)); }, {2, 4, 6}));
}

TEST(ComputeType, LayerAndGroupNorm_WithinBf16) {
  expect_close_in_bf16(
      used_as_is(+[] { return nn::LayerNorm(nn::LayerNormOptions({16})); }, {4, 16}));
  expect_close_in_bf16(used_as_is(+[] { return nn::GroupNorm(2, 6); }, {3, 6, 5}));
}

// Its running statistics are floats, written by an operator whose schema does not declare it.
TEST(ComputeType, BatchNorm_BuffersStayFloatAndAreUpdated) {
  expect_close_in_bf16(used_as_is(+[] { return nn::BatchNorm2d(4); }, {3, 4, 5, 5}));
  expect_close_in_bf16(used_as_is(
      +[] {
        return nn::InstanceNorm2d(
            nn::InstanceNorm2dOptions(3).affine(true).track_running_stats(true));
      },
      {2, 3, 4, 4}));
}

TEST(ComputeType, BatchNorm_RunningStatisticsMove) {
  torch::manual_seed(3);
  nn::BatchNorm1d norm(4);
  Managed managed(strategy::describe(*norm), kBf16);
  const at::Tensor x = torch::randn({8, 4}) + 10;
  for (int i = 0; i < 50; ++i) norm(x);
  EXPECT_TRUE(torch::allclose(norm->running_mean, x.mean(0), 0.02, 0.02)) << norm->running_mean;
  norm->eval();
  EXPECT_LT(norm(x).mean().abs().item<float>(), 0.1);
}

TEST(ComputeType, RecurrentAndEmbedding_WithinBf16) {
  expect_close_in_bf16([] {
    torch::manual_seed(3);
    nn::LSTM lstm(nn::LSTMOptions(8, 6).num_layers(2).bidirectional(true));
    return Subject{lstm.ptr(), [lstm](Inputs& inputs) mutable {
                     return Tensors{std::get<0>(lstm->forward(inputs.real({5, 2, 8})))};
                   }};
  });
  expect_close_in_bf16([] {
    torch::manual_seed(3);
    nn::Embedding embedding(9, 4);
    return Subject{embedding.ptr(), [embedding](Inputs&) mutable {
                     return Tensors{embedding(Inputs::index(9, {3, 4}))};
                   }};
  });
}

// Eight operations one after another.
TEST(ComputeType, Attention_WithinBf16) {
  expect_close_in_bf16(
      [] {
        torch::manual_seed(3);
        nn::TransformerEncoderLayer layer(
            nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0).activation(
                torch::kGELU));
        return Subject{layer.ptr(), [layer](Inputs& inputs) mutable {
                         return Tensors{layer->forward(inputs.real({5, 3, 16}))};
                       }};
      },
      2 * kBf16Bound);
}

}  // namespace
}  // namespace coupler::residency
