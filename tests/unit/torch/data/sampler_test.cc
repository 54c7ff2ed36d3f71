// Samplers and batch samplers of a program's own: the batches of every rank, resuming, and what is
// refused.
#include <coupler/sampler.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "loaders.h"

namespace coupler {
namespace {

using testing::batches_of;
using testing::expect_says;
using testing::kAll;
using testing::NumberMap;
using testing::Numbers;
using testing::refusal;
using testing::run_loaders;
using testing::Yielded;
using testing::yielded_by;

using Batches = std::vector<std::vector<size_t>>;

// Gives the same in every epoch; may lie about how much.
struct GivenSampler : Sampler {
  explicit GivenSampler(std::vector<size_t> samples)
      : order(std::move(samples)), said(order.size()) {}
  size_t size() const override { return said; }
  std::vector<size_t> indices() override { return order; }
  std::vector<size_t> order;
  size_t said;
};

struct GivenBatches : BatchSampler {
  explicit GivenBatches(Batches all, size_t each = 0)
      : given(std::move(all)), said(given.size()), one_size(each) {}
  size_t size() const override { return said; }
  Batches batches() override { return given; }
  size_t batch_size() const override { return one_size; }
  Batches given;
  size_t said, one_size;
};

// Draws from a generator that goes on from epoch to epoch, so that only saved state can resume it.
struct Drawing : Sampler {
  explicit Drawing(size_t samples) : count(samples) {}
  size_t size() const override { return count; }
  std::vector<size_t> indices() override {
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[draw() % i]);
    return order;
  }
  void save(StateDict& state) const override { state.set("drawn", drawn); }
  void load(const StateDict& state) override { drawn = state.integer("drawn"); }
  size_t draw() { return static_cast<size_t>(++drawn * 2654435761 % 4294967291); }
  size_t count;
  int64_t drawn = 0;
};

// Groups samples so that the batches differ in size, others in every epoch; their number, too.
struct Buckets : BatchSampler {
  size_t size() const override { return 11 + static_cast<size_t>(now % 2); }
  Batches batches() override {
    Batches all(size());
    for (size_t i = 0; i < 40; ++i)
      all[(i * i + static_cast<size_t>(now)) % all.size()].push_back(i);
    for (size_t b = 0; b < all.size(); ++b)
      if (all[b].empty()) all[b].push_back(40 + b);
    return all;
  }
  void set_epoch(int64_t epoch) override { now = epoch; }
  int64_t now = 0;
};

DataLoaderOptions choosing(std::shared_ptr<Sampler> sampler, DataLoaderOptions options = {}) {
  options.sampler = std::move(sampler);
  return options;
}
DataLoaderOptions choosing(std::shared_ptr<BatchSampler> sampler, DataLoaderOptions options = {}) {
  options.batch_sampler = std::move(sampler);
  return options;
}

// Accelerate goes on with repetitions if there is not one sample or batch for each rank, and ends
// at once without a full step; Coupler refuses both.
TEST(Sampler, RecordedShardsOfAccelerate_AreReproduced) {
  std::ifstream file(std::string(COUPLER_SOURCE_DIR) +
                     "/tests/unit/core/data/fixtures/sampler_shards.json");
  int reproduced = 0, refused = 0;
  for (const auto& row : nlohmann::json::parse(file)) {
    const int world_size = row["world"];
    const int64_t batch_size = row["batch_size"];
    DataLoaderOptions options{.drop_last = row["drop_last"] != 0,
                              .split_batches = row["split_batches"] != 0,
                              .even_batches = row["even_batches"] != 0};
    size_t entries = 0;
    if (row.contains("sampler")) {
      options.batch_size = batch_size;
      options.sampler = std::make_shared<GivenSampler>(row["sampler"].get<std::vector<size_t>>());
      entries = row["sampler"].size();
    } else {
      options.batch_sampler = std::make_shared<GivenBatches>(row["batches"].get<Batches>(),
                                                             static_cast<size_t>(batch_size));
      for (const auto& batch : row["batches"]) entries += batch_size == 0 ? 1 : batch.size();
    }
    const auto step = static_cast<size_t>(batch_size == 0         ? world_size
                                          : options.split_batches ? batch_size
                                                                  : batch_size * world_size);
    const bool too_few =
        entries < static_cast<size_t>(world_size) || (options.drop_last && entries < step);
    if (too_few) {
      const std::string message = refusal([&] {
        auto loader = data_loader(NumberMap(64), options);
        loader.bind(0, world_size, at::kCPU);
        batches_of(loader);
      });
      EXPECT_NE(message, "accepted") << row.dump();
      ++refused;
      continue;
    }
    ++reproduced;
    for (int rank = 0; rank < world_size; ++rank) {
      for (const int64_t workers : {0, 2}) {
        options.workers = workers;
        auto loader = data_loader(NumberMap(64), options);
        loader.bind(rank, world_size, at::kCPU);
        const auto expected = row["shards"][static_cast<size_t>(rank)].get<std::vector<Numbers>>();
        EXPECT_EQ(batches_of(loader), expected) << row.dump() << " rank " << rank;
        EXPECT_EQ(loader.size(), static_cast<int64_t>(expected.size())) << row.dump();
      }
    }
  }
  EXPECT_EQ(reproduced + refused, 240);
  EXPECT_GT(reproduced, 200);
}

TEST(Sampler, ChangingFromEpochToEpoch_IsToldTheEpoch) {
  const auto buckets = std::make_shared<Buckets>();
  auto loader = data_loader(NumberMap(64), choosing(buckets));
  for (const int64_t epoch : {0, 1, 2, 7}) {
    loader.set_epoch(epoch);
    Buckets expected;
    expected.set_epoch(epoch);
    const Batches all = expected.batches();
    size_t b = 0;
    for (const Numbers& batch : loader) {
      EXPECT_EQ(loader.size(), static_cast<int64_t>(all.size()));
      ASSERT_LT(b, all.size());
      EXPECT_EQ(batch, Numbers(all[b].begin(), all[b].end()));
      EXPECT_EQ(loader.core()->at_last_batch(), ++b == all.size());
    }
    EXPECT_EQ(b, all.size());
  }
}

TEST(Sampler, InterruptedEpoch_GoesOnExactly) {
  const std::function<DataLoaderOptions()> choices[] = {
      [] { return choosing(std::make_shared<Drawing>(23), {.batch_size = 2}); },
      [] {
        return choosing(std::make_shared<Drawing>(23), {.batch_size = 4, .split_batches = true});
      },
      [] { return choosing(std::make_shared<Buckets>()); },
      [] {
        return choosing(
            std::make_shared<GivenBatches>(Batches{{3, 1}, {5, 0}, {2, 2}, {4, 9}, {8}}, 2));
      },
  };
  for (size_t c = 0; c < std::size(choices); ++c) {
    for (const int64_t workers : {0, 1}) {
      const auto make = [&] {
        DataLoaderOptions options = choices[c]();
        options.workers = workers;
        auto loader = data_loader(NumberMap(64), options);
        return loader;
      };
      // In the second epoch, which depends on what the first one drew.
      const auto in_second = [&] {
        auto loader = make();
        batches_of(loader);
        return loader;
      };
      const Yielded whole = yielded_by(in_second, 2);
      ASSERT_GT(whole.steps.size(), 1u);
      for (size_t stop = 1; stop < whole.steps.size(); ++stop) {
        const Yielded first = yielded_by(in_second, 2, stop);
        EXPECT_EQ(first.cursor.epoch, 1);
        const Yielded rest = yielded_by(make, 2, kAll, &first.cursor);
        std::vector<Numbers> joined = first.steps;
        joined.insert(joined.end(), rest.steps.begin(), rest.steps.end());
        EXPECT_EQ(joined, whole.steps) << c << " " << stop;
        EXPECT_EQ(rest.cursor.epoch, 2);
      }
      // With other numbers of ranks, every sample still counts once.
      for (const int world_size : {1, 4}) {
        const Yielded first = yielded_by(in_second, 2, 1);
        const Yielded rest = yielded_by(make, world_size, kAll, &first.cursor);
        Numbers all = first.own, expected = whole.own;
        all.insert(all.end(), rest.own.begin(), rest.own.end());
        std::sort(all.begin(), all.end());
        std::sort(expected.begin(), expected.end());
        EXPECT_EQ(all, expected) << c << " on " << world_size;
      }
    }
  }
}

TEST(Sampler, CursorOfEachPlace_SaysWhatComesNext) {
  auto loader = data_loader(NumberMap(64), choosing(std::make_shared<Buckets>()));
  loader.bind(0, 2, at::kCPU);
  std::vector<std::pair<int64_t, int64_t>> places;
  for ([[maybe_unused]] auto& batch : loader) {
    const LoaderCursor cursor = loader.state();
    EXPECT_EQ(cursor.samples, 0);
    places.emplace_back(cursor.epoch, cursor.batches);
  }
  EXPECT_EQ(places, (std::vector<std::pair<int64_t, int64_t>>{
                        {0, 2}, {0, 4}, {0, 6}, {0, 8}, {0, 10}, {1, 0}}));
  loader.skip_first_batches(2);
  EXPECT_EQ(loader.state().batches, 4);
  EXPECT_EQ(loader.size(), 4);               // the sampler still has the 11 batches of epoch 0
  EXPECT_EQ(batches_of(loader).size(), 4u);  // 12 in epoch 1
}

TEST(Sampler, SkippedBatches_AreNotRead) {
  struct Counting : NumberMap {
    using NumberMap::NumberMap;
    int64_t get(size_t index) override {
      ++reads;
      return NumberMap::get(index);
    }
    int reads = 0;
  };
  auto loader = data_loader(
      Counting(64), choosing(std::make_shared<GivenBatches>(Batches{{1, 2, 3}, {4}, {5, 6}})));
  auto skipped = skip_first_batches(loader, 2);
  EXPECT_EQ(batches_of(skipped), (std::vector<Numbers>{{5, 6}}));
  EXPECT_EQ(loader.dataset().reads, 2);
  EXPECT_EQ(batches_of(loader).size(), 3u);
  expect_says(refusal([&] { loader.skip_first_batches(4); }), "on a data loader with 3 batches");
}

TEST(Sampler, GetAndSet_ChangeWhatTheNextLoopSees) {
  auto loader = data_loader(NumberMap(8), {.batch_size = 4, .shuffle = true});
  EXPECT_EQ(loader.get_sampler(), nullptr);
  const auto sampler = std::make_shared<GivenSampler>(std::vector<size_t>{7, 0, 7, 0, 1});
  loader.set_sampler(sampler);
  EXPECT_EQ(loader.get_sampler(), sampler);
  EXPECT_EQ(loader.size(), 2);
  EXPECT_EQ(batches_of(loader), (std::vector<Numbers>{{7, 0, 7, 0}, {1, 7, 0, 7}}));
  loader.set_sampler(nullptr);
  auto shuffled = data_loader(NumberMap(8), {.batch_size = 4, .shuffle = true});
  shuffled.set_epoch(1);
  EXPECT_EQ(batches_of(loader), batches_of(shuffled));

  loader.bind(0, 3, at::kCPU);
  expect_says(refusal([&] {
                loader.set_sampler(std::make_shared<GivenSampler>(std::vector<size_t>{1, 2}));
              }),
              "the data loader's sampler has 2 samples, fewer than the 3 processes");
  EXPECT_EQ(loader.get_sampler(), nullptr);
  expect_says(refusal([&] {
                for ([[maybe_unused]] auto& batch : loader) loader.set_sampler(sampler);
              }),
              "set_sampler called inside a loop");
  auto batched = data_loader(NumberMap(8), choosing(std::make_shared<Buckets>()));
  expect_says(refusal([&] { batched.set_sampler(sampler); }),
              "set_sampler on a data loader with a batch sampler");
}

TEST(Sampler, WrongOptions_AreRefusedNamingThem) {
  const auto sampler = std::make_shared<GivenSampler>(std::vector<size_t>{1, 2, 3});
  const auto buckets = std::make_shared<Buckets>();
  const auto made = [](const DataLoaderOptions& options) {
    return refusal([&] { data_loader(NumberMap(64), options); });
  };
  expect_says(made(choosing(sampler, {.shuffle = true})), "has both shuffle and a sampler");
  expect_says(made(choosing(buckets, {.batch_size = 2})), "both a batch sampler and a batch_size");
  expect_says(made(choosing(buckets, {.shuffle = true})), "both a batch sampler and shuffle");
  expect_says(made(choosing(buckets, choosing(sampler))), "both a batch sampler and a sampler");
  expect_says(made(choosing(buckets, {.split_batches = true})),
              "split_batches needs batches of one size, but the batch sampler's differ");
  expect_says(made(choosing(std::make_shared<GivenSampler>(std::vector<size_t>{}))),
              "the data loader's sampler is empty: size() is 0");
  expect_says(refusal([&] { data_loader(testing::NumberStream(8), choosing(sampler)); }),
              "has a sampler, but its dataset is a stream");
}

TEST(Sampler, WrongSamples_AreNamedAndTheEpochIsNotLost) {
  const auto sampler = std::make_shared<GivenSampler>(std::vector<size_t>{1, 2, 8, 3});
  auto loader = data_loader(NumberMap(8), choosing(sampler, {.batch_size = 2}));
  const auto looped = [&] { return refusal([&] { batches_of(loader); }); };
  expect_says(looped(), "the sampler in epoch 0: it gives sample 8 at position 2, but the dataset");
  sampler->order = {1, 2, 3};
  expect_says(looped(), "the sampler in epoch 0: indices() returned 3, but size() is 4");
  sampler->order = {1, 2, 3, 4, 5};
  expect_says(looped(), "indices() returned 5, but size() is 4");
  sampler->order = {4, 3, 2, 1};
  loader.skip_first_batches(1);
  sampler->said = 9;
  expect_says(looped(), "indices() returned 4, but size() is 9");
  sampler->said = 4;
  EXPECT_EQ(batches_of(loader), (std::vector<Numbers>{{2, 1}}));  // where the failed loops began
  EXPECT_EQ(loader.epoch(), 0);

  const auto refused = [](const std::shared_ptr<GivenBatches>& batches) {
    auto batched = data_loader(NumberMap(8), choosing(batches));
    return refusal([&] { batches_of(batched); });
  };
  expect_says(refused(std::make_shared<GivenBatches>(Batches{{1}, {}, {2}})),
              "the batch sampler in epoch 0: its batch 1 is empty");
  expect_says(refused(std::make_shared<GivenBatches>(Batches{{1, 2}, {3, 99}})),
              "it gives sample 99 at position 1 of batch 1, but the dataset has 8");
  expect_says(refused(std::make_shared<GivenBatches>(Batches{{1, 2}, {3}, {4, 5}}, 2)),
              "its batch 1 has 1 samples, but batch_size() is 2");
  expect_says(refused(std::make_shared<GivenBatches>(Batches{{1, 2}, {3, 4, 5}}, 2)),
              "its batch 1 has 3 samples, but batch_size() is 2");

  struct Throwing : GivenSampler {
    using GivenSampler::GivenSampler;
    std::vector<size_t> indices() override { throw std::runtime_error("no weights yet"); }
  };
  auto failing =
      data_loader(NumberMap(8), choosing(std::make_shared<Throwing>(std::vector<size_t>{1, 2})));
  expect_says(refusal([&] { batches_of(failing); }), "the sampler in epoch 0: no weights yet");
}

TEST(Sampler, WrongCursors_AreRefused) {
  auto drawing = data_loader(NumberMap(64), choosing(std::make_shared<Drawing>(23)));
  auto buckets = data_loader(NumberMap(64), choosing(std::make_shared<Buckets>()));
  auto plain = data_loader(NumberMap(64), {.batch_size = 2});
  LoaderCursor cursor = drawing.state();
  cursor.samples = 4;
  expect_says(refusal([&] { plain.load_state(cursor); }), "has the state of a sampler, but this");
  expect_says(refusal([&] { buckets.load_state(cursor); }),
              "was saved without a batch sampler of batches that differ in size, but this loader "
              "has one");
  cursor = buckets.state();
  cursor.batches = 4;
  expect_says(refusal([&] { plain.load_state(cursor); }), "was saved with a batch sampler");
  cursor.batches = 13;
  expect_says(refusal([&] { buckets.load_state(cursor); }), "cannot begin at sample 13");
  cursor.batches = -1;
  expect_says(refusal([&] { buckets.load_state(cursor); }), "batch -1, sample 0 of epoch 0");

  struct Forgetful : Drawing {
    using Drawing::Drawing;
    void load(const StateDict&) override {}
  };
  auto forgetful = data_loader(NumberMap(64), choosing(std::make_shared<Forgetful>(23)));
  cursor = drawing.state();
  cursor.sampler.set("drawn", 46);
  expect_says(refusal([&] { forgetful.load_state(cursor); }),
              "the sampler was not restored: 'drawn' has another value");
}

TEST(SamplerRanks, ThatDiffer_AreNamedOnAllRanksWithThePlace) {
  const auto refusal_of = [](auto make) {
    std::vector<std::string> messages(3);
    run_loaders(3, [&](int rank, const auto& peers) {
      auto loader = data_loader(NumberMap(64), choosing(make(rank)));
      loader.bind(rank, 3, at::kCPU, peers);
      messages[static_cast<size_t>(rank)] = refusal([&] { batches_of(loader); });
    });
    EXPECT_EQ(messages[0], messages[1]);
    EXPECT_EQ(messages[0], messages[2]);
    return messages[0];
  };
  expect_says(
      refusal_of([](int rank) {
        return std::make_shared<GivenSampler>(std::vector<size_t>{4, 5, rank == 2 ? 60u : 6u, 7});
      }),
      "the samplers of ranks 0 and 2 differ in epoch 0: rank 0's has sample 6 at position "
      "2, rank 2's sample 60");
  expect_says(refusal_of([](int rank) {
                std::vector<size_t> order{4, 5, 6, 7};
                if (rank == 1) order.pop_back();
                return std::make_shared<GivenSampler>(order);
              }),
              "rank 0's has sample 7 at position 3, rank 1's nothing more");
  expect_says(
      refusal_of([](int rank) {
        return std::make_shared<GivenBatches>(rank == 1 ? Batches{{1, 2}, {3}, {4}}
                                                        : Batches{{1}, {2, 3}, {4}});
      }),
      "the batch samplers of ranks 0 and 1 differ in epoch 0: rank 0's has the end of batch "
      "0, rank 1's sample 2");
}

TEST(SamplerRanks, WhereOneFails_AllThrow) {
  run_loaders(2, [](int rank, const auto& peers) {
    const auto sampler =
        std::make_shared<GivenSampler>(std::vector<size_t>{1, rank == 1 ? 99u : 2u});
    auto loader = data_loader(NumberMap(64), choosing(sampler));
    loader.bind(rank, 2, at::kCPU, peers);
    expect_says(refusal([&] { batches_of(loader); }),
                rank == 1 ? "it gives sample 99" : "rank 1's sampler failed in epoch 0");
    sampler->order = {1, 2};
    EXPECT_EQ(batches_of(loader), (std::vector<Numbers>{{rank == 0 ? 1 : 2}}));
    EXPECT_EQ(loader.epoch(), 0);
  });
}

TEST(SamplerRanks, WithDispatch_OnlyRankZerosIsAsked) {
  struct Asked : GivenSampler {
    using GivenSampler::GivenSampler;
    std::vector<size_t> indices() override {
      ++asked;
      return GivenSampler::indices();
    }
    int asked = 0;
  };
  const at::Tensor numbers = at::arange(64, at::kLong);
  run_loaders(2, [&](int rank, const auto& peers) {
    const auto sampler = std::make_shared<Asked>(std::vector<size_t>{5, 4, 3, 2, 1});
    auto loader = data_loader(TensorDataset(numbers, numbers),
                              choosing(sampler, {.batch_size = 2, .dispatch_batches = true}));
    loader.bind(rank, 2, at::kCPU, peers);
    std::vector<Numbers> seen;
    for (auto& batch : loader)
      seen.emplace_back(batch.data.template data_ptr<int64_t>(),
                        batch.data.template data_ptr<int64_t>() + 2);
    EXPECT_EQ(seen, (rank == 0 ? std::vector<Numbers>{{5, 4}, {1, 5}}
                               : std::vector<Numbers>{{3, 2}, {4, 3}}));
    EXPECT_EQ(sampler->asked, rank == 0 ? 1 : 0);
    if (rank == 0) sampler->order[0] = 99;
    expect_says(refusal([&] {
                  for ([[maybe_unused]] auto& batch : loader) {
                  }
                }),
                rank == 0 ? "it gives sample 99 at position 0" : "rank 0's sampler failed");
  });
}

TEST(SamplerJoin, RankWithoutABatch_RepeatsItsLast) {
  run_loaders(2, [](int rank, const auto& peers) {
    auto loader = data_loader(
        NumberMap(8), choosing(std::make_shared<GivenBatches>(Batches{{1, 2}, {3}, {4, 5, 6}})));
    loader.bind(rank, 2, at::kCPU, peers);
    loader.core()->join(true, false);
    std::vector<int64_t> own;
    std::vector<Numbers> seen;
    for (const Numbers& batch : loader) {
      seen.push_back(batch);
      own.push_back(loader.core()->own_samples());
    }
    EXPECT_EQ(seen, (rank == 0 ? std::vector<Numbers>{{1, 2}, {4, 5, 6}}
                               : std::vector<Numbers>{{3}, {3}}));
    EXPECT_EQ(own, (rank == 0 ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{1, 0}));
  });
}

}  // namespace
}  // namespace coupler
