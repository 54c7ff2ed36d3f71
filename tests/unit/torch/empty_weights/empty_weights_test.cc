#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "models.h"

namespace coupler::empty_weights {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): models.h

class EmptyWeights_Factory : public ::testing::TestWithParam<Factory> {};

TEST_P(EmptyWeights_Factory, Materialise_SameBitsAsEager) {
  torch::manual_seed(7);
  const ModulePtr eager = GetParam().make();
  torch::manual_seed(7);
  const ModulePtr model = build_empty(GetParam().make);
  for (const MetaTensor& item : tensors_with_names(*model)) {
    EXPECT_TRUE(!item.tensor.defined() || item.tensor.is_meta()) << item.name;
  }
  torch::randn({1000});  // unrelated draws in between
  fill(*model);
  expect_same(*model, *eager);
}

INSTANTIATE_TEST_SUITE_P(Modules, EmptyWeights_Factory, ::testing::ValuesIn(factories()),
                         [](const auto& item) { return item.param.name; });

TEST(EmptyWeights, HundredBillionParameters_TakeNoMemory) {
  build_empty([] { return nn::Linear(4, 4).ptr(); });
  const std::optional<long> before = peak_since_reset(true);
  const ModulePtr model = build_empty([] {
    nn::Sequential layers;
    for (int i = 0; i < 100; ++i) layers->push_back(nn::Linear(32768, 32768));
    return layers.ptr();
  });
  int64_t numel = 0;
  for (const auto& parameter : model->parameters()) numel += parameter.numel();
  EXPECT_GT(numel, 107'000'000'000);
  if (!before) GTEST_SKIP() << "the kernel does not reset VmHWM";
  EXPECT_LE(*peak_since_reset(false) - *before, 5 * 1024);
}

TEST(EmptyWeights, ModelOnMeta_ForwardGivesShapes) {
  nn::Sequential model{nullptr};
  {
    const EmptyWeights empty;
    model = nn::Sequential(nn::Linear(8, 16), nn::Tanh(), nn::Linear(16, 10));
  }
  const auto out = model->forward(torch::empty({4, 8}, torch::kMeta));
  EXPECT_EQ(out.sizes(), (at::IntArrayRef{4, 10}));
}

TEST(EmptyWeights, SeedInsideTheScope_SameAsEager) {
  const auto make = [] {
    nn::Sequential layers;
    layers->push_back(nn::Linear(4, 4));
    torch::manual_seed(3);
    layers->push_back(nn::Linear(4, 4));
    torch::manual_seed(3);  // the same state again, after draws
    layers->push_back(nn::Linear(4, 4));
    return layers.ptr();
  };
  torch::manual_seed(3);
  const ModulePtr eager = make();
  torch::manual_seed(3);
  const ModulePtr model = build_empty(make);
  fill(*model);
  expect_same(*model, *eager);
}

TEST(EmptyWeights, ScopeAfterScope_DrawsOneAfterTheOther) {
  const auto make = [] { return nn::Linear(40, 40).ptr(); };
  torch::manual_seed(1);
  const ModulePtr eager_a = make(), eager_b = make(), eager_c = make();
  torch::manual_seed(1);
  ModulePtr a = build_empty(make);
  const ModulePtr b = build_empty(make);
  fill(*b);  // in a different order
  expect_same(*b, *eager_b);
  fill(*a);
  expect_same(*a, *eager_a);
  a = nullptr;
  const ModulePtr c = build_empty(make);
  fill(*c);
  expect_same(*c, *eager_c);
}

TEST(EmptyWeights, EarlierModelDroppedUnused_LaterOneIsTheSame) {
  const auto make = [] { return nn::Linear(40, 40).ptr(); };
  torch::manual_seed(1);
  make();
  const ModulePtr eager = make();
  torch::manual_seed(1);
  build_empty(make);
  const ModulePtr model = build_empty(make);
  fill(*model);
  expect_same(*model, *eager);
}

TEST(EmptyWeights, TwoModelsAndANestedScope_OneRecipe) {
  torch::manual_seed(5);
  const nn::Linear eager_a(8, 8), eager_b(8, 8);
  torch::manual_seed(5);
  nn::Linear a{nullptr}, b{nullptr};
  {
    const EmptyWeights outer;
    {
      const EmptyWeights inner;
      a = nn::Linear(8, 8);
    }
    b = nn::Linear(8, 8);
  }
  EXPECT_TRUE(torch::empty({1}).device().is_cpu());
  fill(*b);
  fill(*a);
  expect_same(*a, *eager_a);
  expect_same(*b, *eager_b);
}

TEST(EmptyWeights, DefaultDtype_IsThatOfTheScope) {
  const auto make = [] { return factories().back().make(); };
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  torch::manual_seed(2);
  const ModulePtr eager = make();
  torch::manual_seed(2);
  const ModulePtr model = build_empty(make);
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  fill(*model);
  expect_same(*model, *eager);
  EXPECT_EQ(torch::get_default_dtype(), caffe2::TypeMeta::Make<float>());
}

TEST(EmptyWeights, OtherThreads_Unaffected) {
  const EmptyWeights empty;
  std::thread([] { EXPECT_TRUE(torch::ones({2}).device().is_cpu()); }).join();
  EXPECT_TRUE(torch::ones({2}).is_meta());
}

nn::BatchNorm1d norm_in_scope(const EmptyWeightsOptions& options) {
  const EmptyWeights empty(options);
  {
    const EmptyWeights inner;  // the outermost scope's options count
    return nn::BatchNorm1d(4);
  }
}

TEST(EmptyWeights, WithoutBuffers_TheyHaveTheirValuesWhenItEnds) {
  nn::BatchNorm1d norm = norm_in_scope({.include_buffers = false});
  EXPECT_TRUE(norm->weight.is_meta());
  EXPECT_TRUE(norm->running_var.equal(torch::ones({4})));
  EXPECT_TRUE(norm->running_mean.equal(torch::zeros({4})));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
  norm = norm_in_scope({});
  EXPECT_TRUE(norm->running_var.is_meta());
}

TEST(EmptyWeights, WithoutBuffers_ParametersComeAsWithThem) {
  const auto make = [] { return nn::Sequential(nn::Linear(3, 4), nn::BatchNorm1d(4)).ptr(); };
  torch::manual_seed(2);
  const ModulePtr eager = make();
  torch::manual_seed(2);
  ModulePtr model;
  {
    const EmptyWeights empty({.include_buffers = false});
    model = make();
  }
  fill(*model);
  expect_same(*model, *eager);
}

TEST(InitOnDevice, Meta_IsEmptyWeights) {
  nn::Linear linear{nullptr};
  {
    const InitOnDevice on(c10::kMeta);
    linear = nn::Linear(4, 4);
  }
  EXPECT_TRUE(linear->weight.is_meta());
  EXPECT_TRUE(torch::ones({2}).is_cpu());
}

TEST(EmptyWeights, ConstructorThrows_EverythingAsBefore) {
  EXPECT_THROW(build_empty([]() -> ModulePtr {
                 nn::Linear linear(4, 4);
                 throw std::runtime_error("no");
               }),
               std::runtime_error);
  EXPECT_TRUE(torch::ones({2}).device().is_cpu());
  torch::manual_seed(1);
  const nn::Linear eager(4, 4);
  torch::manual_seed(1);
  const ModulePtr model = build_empty([] { return nn::Linear(4, 4).ptr(); });
  fill(*model);
  expect_same(*model, *eager);
}

TEST(EmptyWeights, UsersOwnError_IsTheEagerOne) {
  const EmptyWeights empty;
  EXPECT_THROW(torch::randn({3}).copy_(torch::ones({4})), c10::Error);
  EXPECT_THROW(torch::ones({3}) + torch::ones({4}), c10::Error);
}

TEST(EmptyWeights, ItemOfARandomTensor_NamesTheOperationAndTheFix) {
  const EmptyWeights empty;
  const std::string message = message_of([] { torch::randn({3}).norm().item<float>(); });
  EXPECT_TRUE(contains(message, "'aten::item' needs the values of a randomly drawn tensor"))
      << message;
  EXPECT_TRUE(contains(message, "w.div_(w.norm())")) << message;
  EXPECT_FALSE(message_of([] { (void)torch::randn({3}).nonzero(); }).empty());
}

TEST(EmptyWeights, DataPointer_Throws) {
  const EmptyWeights empty;
  const auto drawn = torch::randn({3});
  EXPECT_THROW(drawn.data_ptr<float>(), c10::Error);
  EXPECT_THROW((drawn.accessor<float, 1>()), c10::Error);
  const auto written = torch::empty({3});
  written.data_ptr<float>()[0] = 1;
  written.mul_(2);
  EXPECT_THROW(written.data_ptr<float>(), c10::Error);
}

TEST(EmptyWeights, AnotherDevice_IsRefused) {
  const EmptyWeights empty;
  const std::string message = message_of([] { torch::ones({2}, torch::kCUDA); });
  EXPECT_TRUE(contains(message, "'aten::ones' requests a tensor on cuda")) << message;
}

TEST(EmptyWeights, OwnGenerator_IsRefused) {
  const EmptyWeights empty;
  const std::string message =
      message_of([] { torch::empty({2}).normal_(0, 1, at::detail::createCPUGenerator(1)); });
  EXPECT_TRUE(contains(message, "'aten::normal_' draws from its own generator")) << message;
  EXPECT_NO_THROW(torch::empty({2}).normal_(0, 1, at::detail::getDefaultCPUGenerator()));
}

TEST(EmptyWeights, TensorsFromOutside_AreConstants) {
  const auto table = torch::randn({6, 4});
  const auto other = torch::ones({4}, torch::requires_grad());
  const auto make = [&] {
    auto embedding = nn::Embedding(nn::EmbeddingOptions(6, 4));
    const at::NoGradGuard no_grad;
    embedding->weight.copy_(table);
    embedding->weight[1].add_(other);
    embedding->register_buffer("half", table.to(torch::kHalf));
    embedding->register_buffer("shares", torch::bernoulli(table.abs().clamp(0, 1)));
    embedding->register_buffer("scaled", table.slice(0, 0, 2) * table.mean().item<double>());
    return embedding.ptr();
  };
  torch::manual_seed(4);
  const ModulePtr eager = make();
  torch::manual_seed(4);
  const ModulePtr model = build_empty(make);
  fill(*model);
  expect_same(*model, *eager);

  const EmptyWeights empty;
  EXPECT_TRUE(table.t().device().is_cpu());  // views stay real
  EXPECT_TRUE(table.t().is_alias_of(table));
  const auto counter = table.add_(1)[0][0].item<float>();  // and so do writes to them
  EXPECT_EQ(counter, table[0][0].item<float>());
  EXPECT_TRUE(
      contains(message_of([&] { table.normal_(); }), "'aten::normal_' draws random numbers"));
}

TEST(EmptyWeights, ModelsDone_ConstantsAreFreed) {
  const auto table = torch::rand({6, 4});
  const auto make = [&] {
    auto layer = nn::LayerNorm(nn::LayerNormOptions({4}));
    layer->register_buffer("table", table.clone());
    layer->register_buffer("drawn", torch::bernoulli(table));
    return layer.ptr();
  };
  const size_t before = table.storage().use_count();
  const ModulePtr filled = build_empty(make), loaded = build_empty(make);
  EXPECT_GT(table.storage().use_count(), before);
  fill(*filled);
  for (const MetaTensor& item : tensors_with_names(*loaded)) {
    put_value(item.tensor, torch::ones(item.tensor.sizes()));
  }
  build_empty(make);
  // A draw of an unfilled model is needed by the next model until that one is filled.
  fill(*build_empty(make));
  EXPECT_EQ(table.storage().use_count(), before);
}

TEST(EmptyWeights, ConstantChangedLater_IsAnError) {
  const auto table = torch::randn({6, 4});
  const ModulePtr model = build_empty(
      [&] { return nn::Embedding(nn::EmbeddingOptions(6, 4)._weight(table.clone())).ptr(); });
  table.add_(1);
  const std::string message = message_of([&] { fill(*model); });
  EXPECT_TRUE(contains(message, "an input of 'aten::clone', was changed")) << message;
}

}  // namespace
}  // namespace coupler::empty_weights
