// Loaders with worker threads: the same batches in the same order, and exceptions of a dataset.
#include <atomic>
#include <memory>

#include "loaders.h"

namespace coupler {
namespace {

using testing::batches_of;
using testing::expect_says;
using testing::NumberMap;
using testing::Numbers;
using testing::refusal;

// Counts the copies made; each copy is used by one thread at a time.
struct Copied : torch::data::datasets::Dataset<Copied, int64_t> {
  explicit Copied(size_t samples) : count(samples), copies(std::make_shared<std::atomic<int>>(0)) {}
  Copied(const Copied& other) : Dataset(), count(other.count), copies(other.copies) { ++*copies; }
  int64_t get(size_t index) override {
    EXPECT_EQ(in_use.fetch_add(1), 0) << "two threads use one copy";
    const auto result = static_cast<int64_t>(index);
    in_use.fetch_sub(1);
    return result;
  }
  std::optional<size_t> size() const override { return count; }
  size_t count;
  std::shared_ptr<std::atomic<int>> copies;
  std::atomic<int> in_use = 0;
};

struct FailsAt : NumberMap {
  FailsAt(size_t samples, size_t bad) : NumberMap(samples), bad_index(bad) {}
  int64_t get(size_t index) override {
    if (index == bad_index) throw std::runtime_error("the disk is gone");
    return NumberMap::get(index);
  }
  size_t bad_index;
};

TEST(Prefetch, AnyNumberOfWorkers_GivesTheBatchesOfThePlan) {
  for (const int64_t workers : {0, 1, 3, 8}) {
    for (const int64_t prefetch : {1, 2, 5}) {
      const DataLoaderOptions options{.batch_size = 3, .shuffle = true, .seed = 9};
      DataLoaderOptions threaded = options;
      threaded.workers = workers;
      threaded.prefetch = prefetch;
      auto expected = data_loader(NumberMap(100), options);
      auto loader = data_loader(NumberMap(100), threaded);
      EXPECT_EQ(loader.size(), 34);
      for (int epoch = 0; epoch < 3; ++epoch) ASSERT_EQ(batches_of(loader), batches_of(expected));
    }
  }
}

TEST(Prefetch, EachWorker_HasACopyOfTheDatasetMadeOnce) {
  auto loader = data_loader(Copied(64), {.batch_size = 2, .workers = 3});
  const auto copies = loader.dataset().copies;
  const int before = *copies;
  for (int epoch = 0; epoch < 4; ++epoch) EXPECT_EQ(batches_of(loader).size(), 32u);
  EXPECT_EQ(*copies - before, 3);
  loader.dataset().count = 64;  // the program may change the dataset through this reference
  batches_of(loader);
  EXPECT_EQ(*copies - before, 6);
}

TEST(Prefetch, ChangedDataset_IsSeenByTheNextLoop) {
  struct Added : NumberMap {
    using NumberMap::NumberMap;
    int64_t get(size_t index) override { return NumberMap::get(index) + offset; }
    int64_t offset = 0;
  };
  auto loader = data_loader(Added(4), {.batch_size = 4, .workers = 2});
  EXPECT_EQ(batches_of(loader), (std::vector<Numbers>{{0, 1, 2, 3}}));
  loader.dataset().offset = 10;
  EXPECT_EQ(batches_of(loader), (std::vector<Numbers>{{10, 11, 12, 13}}));
}

TEST(Prefetch, ExceptionOfTheDataset_ReachesTheLoopNamingTheBatch) {
  for (const int64_t workers : {0, 1, 4}) {
    auto loader = data_loader(FailsAt(40, 17), {.batch_size = 4, .workers = workers});
    size_t batches = 0;
    try {
      for ([[maybe_unused]] auto& batch : loader) ++batches;
      FAIL() << "no exception was thrown";
    } catch (const Error& error) {
      expect_says(error.what(), "batch 4 of epoch 0 (samples 16, 17, 18, 19): the disk is gone");
      EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);  // the dataset's own
    }
    EXPECT_EQ(batches, 4u);
    EXPECT_FALSE(loader.core()->in_loop());
    loader.dataset().bad_index = 99;
    EXPECT_EQ(batches_of(loader).size(), 10u);
  }
}

TEST(Prefetch, LoopBrokenOff_EndsItsWorkersAndTheLoop) {
  auto loader = data_loader(NumberMap(10'000), {.batch_size = 1, .workers = 4});
  for (int round = 0; round < 50; ++round) {
    int batches = 0;
    for ([[maybe_unused]] auto& batch : loader)
      if (batches++ == round) break;
    EXPECT_FALSE(loader.core()->in_loop());
  }
  EXPECT_EQ(loader.epoch(), 49);
}

TEST(Prefetch, LoaderDestroyedWithinALoop_LivesUntilTheLoopEnds) {
  auto loader = std::make_unique<DataLoader<NumberMap>>(
      NumberMap(100), DataLoaderOptions{.batch_size = 1, .workers = 2});
  int64_t next = 0;
  auto it = loader->begin();
  loader.reset();
  for (; it != DataLoader<NumberMap>::Iterator(); ++it) EXPECT_EQ((*it)[0], next++);
  EXPECT_EQ(next, 100);
}

TEST(Prefetch, WrongInput_IsRefusedNamingIt) {
  expect_says(refusal([] { data_loader(NumberMap(4), {.workers = -1}); }), "workers is -1");
  expect_says(refusal([] { data_loader(NumberMap(4), {.workers = 5000}); }), "workers is 5000");
  expect_says(refusal([] { data_loader(NumberMap(4), {.prefetch = 0}); }), "prefetch is 0");
  struct Unique : NumberMap {
    using NumberMap::NumberMap;
    Unique(Unique&&) = default;
    std::unique_ptr<int> only;
  };
  auto loader = data_loader(Unique(4), {.workers = 2});
  const auto message = refusal([&] { batches_of(loader); });
  expect_says(message, "Unique cannot be copied for its 2 workers");
}

}  // namespace
}  // namespace coupler
