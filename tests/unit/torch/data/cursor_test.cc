// Skipping and resuming: the remaining samples are exactly those that would have followed.
#include <random>

#include "loaders.h"

namespace coupler {
namespace {

using testing::batches_of;
using testing::expect_says;
using testing::kAll;
using testing::NumberMap;
using testing::Numbers;
using testing::NumberStream;
using testing::refusal;
using testing::Yielded;
using testing::yielded_by;

template <class Dataset>
Yielded run_on(const Dataset& dataset, const DataLoaderOptions& options, int world_size,
               size_t steps, const LoaderCursor* from = nullptr) {
  return yielded_by([&] { return data_loader(dataset, options); }, world_size, steps, from);
}

template <class Dataset>
void expect_resumed_exactly(const Dataset& dataset, DataLoaderOptions options) {
  for (const int64_t workers : {0, 1}) {
    options.workers = workers;
    const Yielded whole = run_on(dataset, options, 2, kAll);
    for (size_t stop = 1; stop < whole.steps.size(); ++stop) {
      const Yielded first = run_on(dataset, options, 2, stop);
      EXPECT_EQ(first.cursor.epoch, 0);
      const Yielded rest = run_on(dataset, options, 2, kAll, &first.cursor);
      std::vector<Numbers> joined = first.steps;
      joined.insert(joined.end(), rest.steps.begin(), rest.steps.end());
      EXPECT_EQ(joined, whole.steps) << stop;  // including the filled last step
      EXPECT_EQ(rest.cursor.epoch, 1);
      EXPECT_EQ(rest.cursor.samples, 0);
    }
  }
}

TEST(Cursor, InterruptedRun_GoesOnAsTheUninterruptedOne) {
  expect_resumed_exactly(NumberMap(23), {.batch_size = 2, .shuffle = true, .seed = 5});
  expect_resumed_exactly(NumberMap(23), {.batch_size = 4, .split_batches = true});
  expect_resumed_exactly(NumberStream(23), {.batch_size = 2});
}

TEST(Cursor, OtherWorldAndBatchSize_StillGiveEverySampleOnce) {
  std::mt19937_64 random(3);
  const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random() % bound); };
  for (int i = 0; i < 300; ++i) {
    const int64_t samples = 30 + below(60);
    const DataLoaderOptions before{
        .batch_size = 1 + below(4), .shuffle = true, .seed = static_cast<uint64_t>(i)};
    const DataLoaderOptions after{.batch_size = 1 + below(4), .shuffle = true};
    const int old_world = static_cast<int>(1 + below(4)),
              world_size = static_cast<int>(1 + below(4));
    const auto check = [&](const Yielded& first, const Yielded& rest) {
      Numbers all = first.own;
      all.insert(all.end(), rest.own.begin(), rest.own.end());
      std::sort(all.begin(), all.end());
      ASSERT_EQ(all.size(), static_cast<size_t>(samples));
      for (int64_t k = 0; k < samples; ++k) ASSERT_EQ(all[static_cast<size_t>(k)], k);
    };
    const NumberMap map(static_cast<size_t>(samples));
    const Yielded first = run_on(map, before, old_world, 1);
    check(first, run_on(map, after, world_size, kAll, &first.cursor));  // uses the cursor's seed
    DataLoaderOptions stream_before = before, stream_after = after;
    stream_before.shuffle = stream_after.shuffle = false;
    const NumberStream stream(samples);
    const Yielded begun = run_on(stream, stream_before, old_world, 1);
    check(begun, run_on(stream, stream_after, world_size, kAll, &begun.cursor));
  }
}

TEST(Cursor, OfEachPlace_SaysWhatComesNext) {
  auto loader = data_loader(NumberMap(10), {.batch_size = 2, .seed = 8});
  const auto at = [&] {
    const LoaderCursor cursor = loader.state();
    EXPECT_EQ(cursor.seed, 8u);
    EXPECT_EQ(cursor.dataset_samples, 10);
    return std::pair(cursor.epoch, cursor.samples);
  };
  using Place = std::pair<int64_t, int64_t>;
  EXPECT_EQ(at(), Place(0, 0));
  std::vector<Place> places;
  for ([[maybe_unused]] auto& batch : loader) places.push_back(at());
  EXPECT_EQ(places, (std::vector<Place>{{0, 2}, {0, 4}, {0, 6}, {0, 8}, {1, 0}}));
  EXPECT_EQ(at(), Place(1, 0));
  for ([[maybe_unused]] auto& batch : loader) break;
  EXPECT_EQ(at(), Place(2, 0));  // the break skipped the rest of epoch 1
  loader.skip_first_batches(2);
  EXPECT_EQ(at(), Place(2, 4));
}

TEST(SkipFirstBatches, NextLoopOnly_LeavesThemOut) {
  auto loader = data_loader(NumberMap(7), {.batch_size = 2});
  auto skipped = skip_first_batches(loader, 3);
  EXPECT_EQ(loader.size(), 1);
  EXPECT_EQ(batches_of(skipped), (std::vector<Numbers>{{6, 0}}));
  EXPECT_EQ(loader.size(), 4);
  EXPECT_EQ(batches_of(loader).size(), 4u);
  loader.skip_first_batches(1);
  loader.skip_first_batches(1);  // two in total
  EXPECT_EQ(batches_of(loader), (std::vector<Numbers>{{4, 5}, {6, 0}}));
  loader.skip_first_batches(4);
  EXPECT_EQ(loader.size(), 0);
  EXPECT_TRUE(batches_of(loader).empty());

  auto stream = data_loader(NumberStream(7), {.batch_size = 2});
  stream.skip_first_batches(2);
  EXPECT_EQ(batches_of(stream), (std::vector<Numbers>{{4, 5}, {6, 0}}));
  EXPECT_EQ(batches_of(stream).size(), 4u);
}

// A dataset that cannot be read, since skipping must not read.
TEST(SkipFirstBatches, OfAMapStyleDataset_ReadsNothing) {
  struct Counting : NumberMap {
    using NumberMap::NumberMap;
    int64_t get(size_t index) override {
      ++reads;
      return NumberMap::get(index);
    }
    int reads = 0;
  };
  auto loader = data_loader(Counting(1'000'000), {.batch_size = 10, .shuffle = true});
  loader.skip_first_batches(99'999);
  EXPECT_EQ(batches_of(loader).size(), 1u);
  EXPECT_EQ(loader.dataset().reads, 10);
}

TEST(Cursor, WrongInput_IsRefusedNamingIt) {
  auto loader = data_loader(NumberMap(7), {.batch_size = 2});
  expect_says(refusal([&] { loader.skip_first_batches(-1); }), "skip_first_batches(-1)");
  expect_says(refusal([&] { loader.skip_first_batches(5); }),
              "skip_first_batches(5) on a data loader with 4 batches");
  LoaderCursor cursor = loader.state();
  cursor.dataset_samples = 8;
  expect_says(refusal([&] { loader.load_state(cursor); }),
              "saved with a dataset of 8 samples, but this loader has a dataset of 7 samples");
  cursor.dataset_samples = -1;
  expect_says(refusal([&] { loader.load_state(cursor); }),
              "saved with a stream, but this loader has a dataset");
  cursor.dataset_samples = 7;
  cursor.samples = 8;
  expect_says(refusal([&] { loader.load_state(cursor); }), "cannot begin at sample 8");
  cursor.samples = -2;
  expect_says(refusal([&] { loader.load_state(cursor); }), "sample -2 of epoch 0");
  cursor = loader.state();
  expect_says(refusal([&] {
                for ([[maybe_unused]] auto& batch : loader) loader.load_state(cursor);
              }),
              "load_state called inside a loop");
  expect_says(refusal([&] {
                for ([[maybe_unused]] auto& batch : loader) loader.skip_first_batches(1);
              }),
              "skip_first_batches called inside a loop");
  EXPECT_EQ(loader.size(), 4);  // still usable

  auto stream = data_loader(NumberStream(7), {.batch_size = 2});
  stream.skip_first_batches(5);
  expect_says(refusal([&] { batches_of(stream); }), "the stream has 7 samples, but 10 were to be");
}

}  // namespace
}  // namespace coupler
