#include <ATen/Functions.h>
#include <coupler/data_loader.h>
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>

#include <optional>
#include <string>
#include <vector>

#include "loaders.h"

namespace coupler {
namespace {

TensorDataset numbered(int64_t samples) {
  const at::Tensor numbers = at::arange(samples, at::kLong);
  return {numbers.to(at::kFloat).unsqueeze(1).repeat({1, 3}), numbers};
}

// A plain torch dataset: one get() per sample.
struct Squares : torch::data::datasets::Dataset<Squares> {
  torch::data::Example<> get(size_t index) override {
    const auto i = static_cast<int64_t>(index);
    return {at::full({2, 2}, i * i, at::kFloat), at::scalar_tensor(i, at::kLong)};
  }
  std::optional<size_t> size() const override { return 5; }
};

// Examples that are not tensors, and samples of different lengths.
struct Words : torch::data::datasets::Dataset<Words, std::string> {
  std::string get(size_t index) override { return std::string(index, 'x'); }
  std::optional<size_t> size() const override { return 4; }
};

struct Ragged : torch::data::datasets::Dataset<Ragged, torch::data::TensorExample> {
  torch::data::TensorExample get(size_t index) override {
    return at::zeros({static_cast<int64_t>(index) + 1});
  }
  std::optional<size_t> size() const override { return 3; }
};

struct Sizeless : torch::data::datasets::Dataset<Sizeless> {
  torch::data::Example<> get(size_t) override { return {}; }
  std::optional<size_t> size() const override { return std::nullopt; }
};

template <class Loader>
std::vector<std::vector<int64_t>> targets(Loader& loader) {
  std::vector<std::vector<int64_t>> all;
  for (auto& batch : loader) {
    auto& own = all.emplace_back();
    for (int64_t i = 0; i < batch.target.size(0); ++i)
      own.push_back(batch.target[i].template item<int64_t>());
  }
  return all;
}

using testing::refusal;
using Targets = std::vector<std::vector<int64_t>>;

TEST(DataLoader, TensorDataset_YieldsRowsWithTheirTargets) {
  auto loader = data_loader(numbered(5), {.batch_size = 2});
  EXPECT_EQ(loader.size(), 3);
  int64_t next = 0;
  for (auto& batch : loader) {
    EXPECT_EQ(batch.data.sizes(), (at::IntArrayRef{2, 3}));
    EXPECT_EQ(batch.data[0][2].item<float>(), static_cast<float>(next));
    EXPECT_EQ(batch.target[0].item<int64_t>(), next);
    next += 2;
  }
  EXPECT_EQ(next, 6);
}

TEST(DataLoader, Batch_Written_LeavesTheDatasetAlone) {
  auto dataset = numbered(2);
  auto loader = data_loader(dataset, {.batch_size = 2});
  for (auto& batch : loader) batch.data.fill_(-1);
  EXPECT_EQ(dataset.get(1).data[0].item<float>(), 1.0f);
}

TEST(DataLoader, DatasetOfExamples_IsStacked) {
  auto loader = data_loader(Squares{}, {.batch_size = 3, .even_batches = false});
  std::vector<std::vector<int64_t>> shapes;
  for (auto& batch : loader) {
    shapes.push_back(batch.data.sizes().vec());
    EXPECT_EQ(
        batch.data.select(0, 1)[0][0].item<float>(),
        static_cast<float>(batch.target[1].item<int64_t>() * batch.target[1].item<int64_t>()));
  }
  EXPECT_EQ(shapes, (std::vector<std::vector<int64_t>>{{3, 2, 2}, {2, 2, 2}}));
}

TEST(DataLoader, ExamplesOfOtherTypes_ComeAsTheDatasetGaveThem) {
  auto loader = data_loader(Words{}, {.batch_size = 2});
  size_t next = 0;
  for (const std::vector<std::string>& batch : loader)
    for (const auto& word : batch) EXPECT_EQ(word.size(), next++);
  EXPECT_EQ(next, 4u);
}

TEST(DataLoader, SamplesOfDifferentShapes_AreNamed) {
  auto loader = data_loader(Ragged{}, {.batch_size = 3});
  const auto message = refusal([&] { loader.begin(); });
  EXPECT_NE(message.find("sample 0 has [1], sample 1 has [2]"), std::string::npos) << message;
}

TEST(DataLoader, LoopedTwice_GoesOnToTheNextEpoch) {
  auto loader = data_loader(numbered(20), {.batch_size = 4, .shuffle = true, .seed = 7});
  const auto first = targets(loader);
  EXPECT_EQ(loader.epoch(), 0);
  const auto second = targets(loader);
  EXPECT_EQ(loader.epoch(), 1);
  EXPECT_NE(first, second);
  loader.set_epoch(0);
  EXPECT_EQ(targets(loader), first);
  EXPECT_EQ(targets(loader), second);
}

TEST(DataLoader, WithoutShuffle_EveryEpochIsTheSame) {
  auto loader = data_loader(numbered(3), {.batch_size = 2});
  EXPECT_EQ(targets(loader), (Targets{{0, 1}, {2, 0}}));
  EXPECT_EQ(targets(loader), (Targets{{0, 1}, {2, 0}}));
}

TEST(DataLoader, ShuffledOverAnyWorld_TakesTheSameSamplesInEveryStep) {
  const DataLoaderOptions options{
      .batch_size = 12, .shuffle = true, .drop_last = true, .seed = 3, .split_batches = true};
  auto alone = data_loader(numbered(100), options);
  const Targets expected[] = {targets(alone), targets(alone)};
  for (const int world_size : {2, 3, 4}) {
    Targets joined[2];
    for (int rank = 0; rank < world_size; ++rank) {
      auto loader = data_loader(numbered(100), options);
      loader.bind(rank, world_size, at::kCPU);
      EXPECT_EQ(loader.size(), 8);
      for (auto& epoch : joined) {
        const auto own = targets(loader);
        epoch.resize(own.size());
        for (size_t i = 0; i < own.size(); ++i)
          epoch[i].insert(epoch[i].end(), own[i].begin(), own[i].end());
      }
    }
    EXPECT_EQ(joined[0], expected[0]) << world_size;
    EXPECT_EQ(joined[1], expected[1]) << world_size;
  }
}

TEST(DataLoader, Size_IsWhatALoopYieldsOnEveryRank) {
  for (const bool even : {true, false})
    for (const bool drop_last : {true, false})
      for (int rank = 0; rank < 3; ++rank) {
        auto loader = data_loader(numbered(20),
                                  {.batch_size = 3, .drop_last = drop_last, .even_batches = even});
        loader.bind(rank, 3, at::kCPU);
        EXPECT_EQ(loader.size(), static_cast<int64_t>(targets(loader).size()));
      }
}

TEST(DataLoader, Position_KnowsTheLastBatch) {
  auto loader = data_loader(numbered(5), {.batch_size = 2});
  const auto core = loader.core();
  std::vector<bool> last;
  for ([[maybe_unused]] auto& batch : loader) {
    last.push_back(core->at_last_batch());
  }
  EXPECT_EQ(last, (std::vector<bool>{false, false, true}));
}

TEST(DataLoader, Copy_IsTheSameLoader) {
  auto loader = data_loader(numbered(6), {.batch_size = 1});
  auto copy = loader;
  copy.bind(1, 2, at::kCPU);
  EXPECT_EQ(loader.size(), 3);
  EXPECT_EQ(targets(loader), (Targets{{1}, {3}, {5}}));
}

TEST(DataLoader, BreakInTheMiddle_LeavesTheRestOfTheEpochOut) {
  auto loader = data_loader(numbered(6), {.batch_size = 2});
  for ([[maybe_unused]] auto& batch : loader) break;
  EXPECT_EQ(targets(loader), (Targets{{0, 1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(loader.epoch(), 1);
}

TEST(DataLoader, NestedLoops_AreRefused) {
  auto loader = data_loader(numbered(6), {.batch_size = 2});
  const auto message = refusal([&] {
    for ([[maybe_unused]] auto& outer : loader)
      for ([[maybe_unused]] auto& inner : loader) {
      }
  });
  EXPECT_NE(message.find("after another one began"), std::string::npos) << message;
}

TEST(DataLoader, WrongInput_IsRefusedNamingIt) {
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(refusal([] { data_loader(numbered(0)); }), "no samples");
  expect(refusal([] { data_loader(Sizeless{}); }), "does not know its size");
  expect(refusal([] { data_loader(numbered(4), {.batch_size = 0}); }), "batch_size is 0");
  expect(refusal([] { data_loader(numbered(4), {.batch_size = 5, .drop_last = true}); }),
         "a dataset of 4 samples yields no batch");
  expect(refusal([] {
           TensorDataset(at::zeros({3, 2}), at::zeros({4}));
         }),
         "3 rows, but its target has 4");
  expect(refusal([] { TensorDataset(at::zeros({}), at::zeros({4})); }), "data is a scalar");
  expect(refusal([] { TensorDataset(at::zeros({4}), at::Tensor()); }), "undefined tensor");
  auto loader = data_loader(numbered(32), {.batch_size = 8, .split_batches = true});
  expect(refusal([&] { loader.bind(0, 3, at::kCPU); }), "batch_size 8 cannot be split over 3");
  expect(refusal([&] { loader.set_epoch(-1); }), "set_epoch(-1)");
  EXPECT_EQ(loader.size(), 4);  // still usable
}

}  // namespace
}  // namespace coupler
