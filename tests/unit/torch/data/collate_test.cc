// Collate functions: what they get, what becomes of what they return, and what is refused.
#include <ATen/Functions.h>
#include <coupler/nested.h>

#include <atomic>
#include <map>
#include <stdexcept>

#include "loaders.h"

namespace coupler {
namespace {

using testing::batches_of;
using testing::expect_says;
using testing::NumberMap;
using testing::Numbers;
using testing::NumberStream;
using testing::refusal;
using testing::run_loaders;

using Example = torch::data::Example<>;

// Texts of different lengths; data is the text, target its length.
struct Texts : torch::data::datasets::Dataset<Texts> {
  Example get(size_t index) override {
    const auto length = static_cast<int64_t>(index % 3) + 1;
    return {at::full({length}, static_cast<int64_t>(index), at::kLong),
            at::scalar_tensor(length, at::kLong)};
  }
  std::optional<size_t> size() const override { return 6; }
};

// Pads to the longest text of the batch, as a tokenizer's collator does.
struct Padded {
  at::Tensor tokens, mask;
};

Padded pad(const std::vector<Example>& samples) {
  int64_t longest = 0;
  for (const Example& sample : samples) longest = std::max(longest, sample.data.size(0));
  const auto count = static_cast<int64_t>(samples.size());
  Padded batch{at::full({count, longest}, -1, at::kLong), at::zeros({count, longest}, at::kBool)};
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor& text = samples[static_cast<size_t>(i)].data;
    batch.tokens[i].narrow(0, 0, text.size(0)).copy_(text);
    batch.mask[i].narrow(0, 0, text.size(0)).fill_(true);
  }
  return batch;
}

Numbers sum_of(const Numbers& samples) {
  int64_t sum = 0;
  for (const int64_t sample : samples) sum += sample;
  return {sum};
}

}  // namespace
}  // namespace coupler

template <>
struct coupler::NestedFields<coupler::Padded> {
  static constexpr auto fields =
      std::make_tuple(coupler::nested_field("tokens", &coupler::Padded::tokens),
                      coupler::nested_field("mask", &coupler::Padded::mask));
};

namespace coupler {
namespace {

TEST(CollateFn, OfSamples_MakesTheBatch) {
  for (const int64_t workers : {0, 2}) {
    auto loader = data_loader(Texts{}, {.batch_size = 2, .workers = workers}, pad);
    std::vector<int64_t> widths;
    for (const Padded& batch : loader) {
      widths.push_back(batch.tokens.size(1));
      EXPECT_TRUE(at::equal(batch.tokens.ge(0), batch.mask));
    }
    EXPECT_EQ(widths, (std::vector<int64_t>{2, 3, 3}));
  }
}

// TensorDataset's get_batch returns an example: a function that takes samples gets them one by one.
TEST(CollateFn, OfADatasetThatBuildsBatches_GetsWhatItTakes) {
  const at::Tensor numbers = at::arange(5, at::kLong);
  auto of_samples = data_loader(
      TensorDataset(numbers, numbers), {.batch_size = 2, .even_batches = false},
      [](const std::vector<Example>& samples) { return static_cast<int64_t>(samples.size()); });
  std::vector<int64_t> sizes;
  for (const int64_t size : of_samples) sizes.push_back(size);
  EXPECT_EQ(sizes, (std::vector<int64_t>{2, 2, 1}));
  auto of_batch = data_loader(TensorDataset(numbers, numbers), {.batch_size = 5},
                              [](const Example& batch) { return batch.data.sum(); });
  for (const at::Tensor& sum : of_batch) EXPECT_EQ(sum.item<int64_t>(), 10);
}

TEST(CollateFn, OfAStream_GetsEachRanksSamples) {
  std::vector<Numbers> seen;
  for (int rank = 0; rank < 2; ++rank) {
    auto loader = data_loader(NumberStream(7), {.batch_size = 2}, sum_of);
    loader.bind(rank, 2, at::kCPU);
    for (const Numbers& batch : loader) seen.push_back(batch);
  }
  EXPECT_EQ(seen, (std::vector<Numbers>{{0 + 1}, {4 + 5}, {2 + 3}, {6 + 0}}));
}

TEST(CollateFn, StructuresOfTensors_AreSentByDispatch) {
  run_loaders(2, [](int rank, const auto& peers) {
    auto loader = data_loader(Texts{}, {.batch_size = 1, .dispatch_batches = true}, pad);
    loader.bind(rank, 2, at::kCPU, peers);
    Numbers first;
    for (const Padded& batch : loader) {
      ASSERT_EQ(batch.tokens.size(0), 1);
      first.push_back(batch.tokens[0][0].item<int64_t>());
    }
    EXPECT_EQ(first, (rank == 0 ? Numbers{0, 2, 4} : Numbers{1, 3, 5}));
  });
  const auto as_map = [](const std::vector<Example>& samples) {
    return std::map<std::string, at::Tensor>{{"tokens", samples[0].data}};
  };
  expect_says(refusal([&] { data_loader(Texts{}, {.dispatch_batches = true}, as_map); }),
              "cannot be sent to other processes (dispatch_batches)");
  auto loader = data_loader(Texts{}, {}, as_map);
  for (const auto& batch : loader) EXPECT_EQ(batch.count("tokens"), 1u);
}

TEST(CollateFn, WithState_IsCopiedForEachWorker) {
  struct Counting {
    Numbers operator()(const Numbers& samples) {
      ++calls;
      EXPECT_EQ(in_use.exchange(true), false) << "two threads use one copy";
      in_use = false;
      return samples;
    }
    Counting() = default;
    Counting(const Counting&) {}
    int calls = 0;
    std::atomic<bool> in_use = false;
  };
  auto loader = data_loader(NumberMap(40), {.batch_size = 2, .workers = 3}, Counting());
  EXPECT_EQ(batches_of(loader).size(), 20u);
}

TEST(CollateFn, ThatFails_NamesTheSamplesAndTheBatch) {
  const auto reading = [](auto dataset, const auto& collate) {
    return refusal([&] {
      auto loader = data_loader(dataset, {.batch_size = 2}, collate);
      for ([[maybe_unused]] auto& batch : loader) {
      }
    });
  };
  const auto picky = [](const Numbers& samples) {
    if (samples[0] == 4) throw std::runtime_error("too long");
    return samples;
  };
  expect_says(reading(NumberMap(8), picky), "batch 2 of epoch 0 (samples 4, 5): too long");
  expect_says(reading(NumberStream(8), picky),
              "batch 2 of epoch 0 (samples 4 to 5 of the stream): too long");
  expect_says(reading(NumberMap(8), [](const Numbers&) { return at::Tensor(); }),
              "batch 0 of epoch 0 (samples 0, 1): collate returned a batch of type at::Tensor "
              "without a tensor");
  expect_says(reading(NumberMap(8), [](const Numbers&) { return std::vector<at::Tensor>(); }),
              "without a tensor");
  struct Single {
    Single() = default;
    Single(Single&&) = default;
    Numbers operator()(const Numbers& samples) const { return samples; }
  };
  expect_says(refusal([&] {
                auto loader = data_loader(NumberMap(8), {.workers = 2}, Single());
                batches_of(loader);
              }),
              "Single cannot be copied for its 2 workers");
  // Cutting a batch for dispatch needs a row for each sample.
  run_loaders(2, [](int rank, const auto& peers) {
    auto loader = data_loader(NumberMap(8), {.batch_size = 2, .dispatch_batches = true},
                              [](const Numbers&) { return at::zeros({1}); });
    loader.bind(rank, 2, at::kCPU, peers);
    expect_says(refusal([&] { loader.begin(); }),
                "a batch cannot be split: it has 1 rows, but 4 samples were requested");
  });
}

}  // namespace
}  // namespace coupler
