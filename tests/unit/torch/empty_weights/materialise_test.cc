#include <ATen/autocast_mode.h>
#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "empty_weights/empty_weights.h"
#include "models.h"

namespace coupler::empty_weights {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): models.h

constexpr int kDeepLayers = 40, kDeepWidth = 1024;
constexpr size_t kDeepLayerBytes = (size_t{kDeepWidth} + 1) * kDeepWidth * sizeof(float);

ModulePtr deep_model() {
  nn::Sequential layers;
  for (int i = 0; i < kDeepLayers; ++i) layers->push_back(nn::Linear(kDeepWidth, kDeepWidth));
  const at::NoGradGuard no_grad;
  for (const auto& parameter : layers->parameters()) parameter.normal_(0, 0.02);
  return layers.ptr();
}

TEST(Materialise, WeightsInitialisedTwice_OneLayerAtATime) {
  const ModulePtr model = build_empty(deep_model);
  const std::vector<MetaTensor> wanted = tensors_with_names(*model);
  at::rand({kDeepWidth, kDeepWidth});
  const std::optional<long> before = peak_since_reset(true);
  const ReplayReport report = materialize(wanted, [](size_t, const at::Tensor&) {});
  EXPECT_LE(report.peak_bytes, 2 * kDeepLayerBytes);
  if (!before) GTEST_SKIP() << "the kernel does not reset VmHWM";
  const long quarter =
      long{kDeepLayers / 4 * kDeepLayerBytes} / 1024;  // the allocator keeps a little
  EXPECT_LE(*peak_since_reset(false) - *before, quarter);
}

TEST(Materialise, EachTensorOnce_TiedOnesShareMemory) {
  torch::manual_seed(1);
  const ModulePtr model = build_empty([] { return nn::Linear(4, 4).ptr(); });
  std::vector<MetaTensor> wanted = tensors_with_names(*model);
  wanted.push_back({"tied", wanted[0].tensor});
  wanted.push_back({"transposed", wanted[0].tensor.t()});
  wanted.push_back({"none", at::Tensor()});
  wanted.push_back({"real", torch::ones({2})});
  std::map<size_t, at::Tensor> values;
  materialize(wanted, [&](size_t i, const at::Tensor& value) {
    EXPECT_TRUE(values.emplace(i, value).second);
  });
  ASSERT_EQ(values.size(), wanted.size());
  EXPECT_TRUE(values[0].is_alias_of(values[2]));
  EXPECT_TRUE(torch::equal(values[0].t(), values[3]));
  EXPECT_FALSE(values[4].defined());
  EXPECT_TRUE(values[5].is_same(wanted[5].tensor));
}

TEST(Materialise, SeveralCallsInAnyOrder_SameBitsAndNoDrawTwice) {
  torch::manual_seed(1);
  const ModulePtr eager = deep_model();
  torch::manual_seed(1);
  const ModulePtr model = build_empty(deep_model);
  const std::vector<MetaTensor> wanted = tensors_with_names(*model);
  size_t operations = 0;
  for (size_t i = wanted.size(); i-- > 0;) {
    operations += materialize({wanted[i]}, [&](size_t, const at::Tensor& value) {
                    put_value(wanted[i].tensor, value);
                  }).operations;
  }
  expect_same(*model, *eager);
  // Every draw once, starting with the last; then each of the others again for its values.
  EXPECT_LE(operations, 6 * wanted.size());
}

TEST(Materialise, Modes_NeutralInsideAndAsBeforeAfterwards) {
  const auto make = [] { return factories().back().make(); };
  torch::manual_seed(1);
  const ModulePtr eager = make();
  torch::manual_seed(1);
  const ModulePtr model = build_empty(make);
  torch::manual_seed(99);
  const auto expected = torch::rand({2});
  torch::manual_seed(99);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  {
    const c10::InferenceMode inference;
    fill(*model);
    EXPECT_TRUE(c10::InferenceMode::is_enabled());
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);
  expect_same(*model, *eager);
  EXPECT_TRUE(torch::equal(torch::rand({2}), expected));
  EXPECT_TRUE(at::GradMode::is_enabled());
}

TEST(Materialise, SinkThrows_GeneratorAndModesAsBefore) {
  const ModulePtr model = build_empty([] { return nn::Linear(4, 4).ptr(); });
  torch::manual_seed(99);
  const auto expected = torch::rand({2});
  torch::manual_seed(99);
  EXPECT_THROW(materialize(tensors_with_names(*model),
                           [](size_t, const at::Tensor&) { throw std::runtime_error("full"); }),
               std::runtime_error);
  EXPECT_TRUE(torch::equal(torch::rand({2}), expected));
  EXPECT_TRUE(at::GradMode::is_enabled());
  fill(*model);  // and it can be retried
  EXPECT_TRUE(model->parameters()[0].device().is_cpu());
}

TEST(Materialise, SinkBuildsAndDraws_AsOutside) {
  torch::manual_seed(1);
  const ModulePtr eager = deep_model();
  torch::manual_seed(1);
  const ModulePtr model = build_empty(deep_model);
  torch::manual_seed(99);
  const auto expected = torch::rand({2});
  const nn::Linear eager_other(4, 4);
  torch::manual_seed(99);
  ModulePtr other;
  materialize(tensors_with_names(*model), [&](size_t i, const at::Tensor& value) {
    put_value(model->parameters()[i], value);
    if (i > 0) return;
    EXPECT_TRUE(at::GradMode::is_enabled());
    EXPECT_TRUE(torch::equal(torch::rand({2}), expected));
    other = build_empty([] { return nn::Linear(4, 4).ptr(); });
    fill(*other);
  });
  expect_same(*model, *eager);
  expect_same(*other, *eager_other);
}

TEST(Materialise, InsideAScope_GivesRealTensors) {
  const EmptyWeights empty;
  nn::Linear linear(4, 4);
  fill(*linear);
  EXPECT_TRUE(linear->weight.device().is_cpu());
}

TEST(Materialise, OnAnotherThread_WhileThisOneRecords) {
  torch::manual_seed(1);
  const ModulePtr eager = deep_model();
  torch::manual_seed(1);
  const ModulePtr model = build_empty(deep_model);
  std::thread other([&] { fill(*model); });
  for (int i = 0; i < 200; ++i) {
    build_empty([] {
      nn::Sequential layers;
      layers->push_back(nn::Linear(8, 8));
      return layers.ptr();
    });
  }
  other.join();
  expect_same(*model, *eager);
}

TEST(Materialise, NoRecipe_ErrorNamesTensorAndHint) {
  const std::string message = message_of([] {
    materialize({{"layer.weight", torch::empty({2}, torch::kMeta)}},
                [](size_t, const at::Tensor&) {});
  });
  EXPECT_TRUE(contains(message, "'layer.weight' is on the meta device and its values are unknown"))
      << message;
  EXPECT_TRUE(
      contains(message, "build the model inside coupler::EmptyWeights, conversions included"))
      << message;
  EXPECT_FALSE(has_recording(torch::empty({2}, torch::kMeta)));
  EXPECT_FALSE(has_recording(torch::empty({2})));
  EXPECT_FALSE(has_recording(at::Tensor()));
}

TEST(Materialise, ChangedOutsideTheScope_ErrorNamesTensor) {
  const ModulePtr model = build_empty([] { return nn::Linear(4, 4).ptr(); });
  EXPECT_TRUE(has_recording(model->parameters()[0]));
  {
    const at::NoGradGuard no_grad;
    model->parameters()[0].zero_();
  }
  const std::string message = message_of([&] { fill(*model); });
  EXPECT_TRUE(contains(message, "'weight' was changed in place outside")) << message;
  const std::string later = message_of([&] {
    const EmptyWeights empty;
    const at::NoGradGuard no_grad;
    model->parameters()[0].mul_(2);
  });
  EXPECT_TRUE(contains(later, "'aten::mul_' uses a weight that was changed")) << later;
}

TEST(Materialise, ChangedInALaterScope_IsRecorded) {
  torch::manual_seed(1);
  const nn::Linear eager(4, 4);
  torch::manual_seed(1);
  const ModulePtr model = build_empty([] { return nn::Linear(4, 4).ptr(); });
  const at::NoGradGuard no_grad;
  {
    const EmptyWeights empty;
    model->parameters()[0].mul_(2);
  }
  fill(*model);
  EXPECT_TRUE(torch::equal(model->parameters()[0], eager->weight * 2));
}

TEST(PutValue, TypedMembersAndOptimizer_SeeTheValue) {
  torch::manual_seed(1);
  nn::LSTM eager(nn::LSTMOptions(4, 4));
  torch::manual_seed(1);
  nn::LSTM lstm{nullptr};
  {
    const EmptyWeights empty;
    lstm = nn::LSTM(nn::LSTMOptions(4, 4));
  }
  torch::optim::SGD optimizer(lstm->parameters(), 0.1), reference(eager->parameters(), 0.1);
  // A gradient accumulator from the time on the meta device must not remain.
  const auto shapes = std::get<0>(lstm->forward(torch::empty({2, 1, 4}, torch::kMeta)));
  fill(*lstm);
  const auto input = torch::ones({2, 1, 4});
  for (auto* step : {&optimizer, &reference}) {
    auto& module = step == &optimizer ? lstm : eager;
    std::get<0>(module->forward(input)).sum().backward();
    step->step();
  }
  expect_same(*lstm, *eager);
  EXPECT_TRUE(shapes.is_meta());
}

TEST(PutValue, WrongValues_AreRefused) {
  const ModulePtr model = build_empty([] { return nn::Linear(4, 4).ptr(); });
  const at::Tensor weight = model->parameters()[0];
  EXPECT_TRUE(
      contains(message_of([&] {
                 put_value(weight, torch::ones({3, 4}));
               }),
               "a tensor of shape [3, 4] on cpu cannot take the place of one of shape [4, 4]"));
  EXPECT_TRUE(contains(message_of([&] { put_value(weight, at::Tensor()); }), "(undefined)"));
  EXPECT_TRUE(
      contains(message_of([&] { put_value(torch::ones({2}), torch::ones({2})); }), "on cpu"));
  EXPECT_TRUE(contains(message_of([&] {
                         put_value(weight, torch::ones({4, 4}, torch::kLong));
                       }),
                       "requires gradients cannot be of dtype Long"));
  put_value(weight, torch::ones({4, 4}, torch::kBFloat16));
  EXPECT_EQ(weight.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(weight.requires_grad() && weight.is_leaf());
}

}  // namespace
}  // namespace coupler::empty_weights
