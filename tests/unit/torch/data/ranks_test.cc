// What loaders of several ranks do together: rank 0 reads for all, and uneven inputs are joined.
#include <ATen/Functions.h>
#include <coupler/data_loader.h>

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

TensorDataset rows(int64_t samples) {
  const at::Tensor numbers = at::arange(samples, at::kLong);
  return {numbers.to(at::kHalf).unsqueeze(1).repeat({1, 2}), numbers};
}

Numbers numbers_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

// A stream of examples that only rank 0 may read.
struct RankZeroOnly {
  std::optional<torch::data::Example<>> next() {
    if (rank != 0) throw std::runtime_error("this rank must not read");
    if (place == count) return std::nullopt;
    if (place == fails_at) throw std::runtime_error("the socket is closed");
    const at::Tensor number = at::scalar_tensor(place++, at::kLong);
    return torch::data::Example<>{number.to(at::kDouble).expand({3}), number};
  }
  void reset() { place = 0; }
  int64_t count;
  int rank;
  int64_t fails_at = -1;
  int64_t place = 0;
};

// The steps of one rank as numbers, with how many of each are its own.
struct Seen {
  std::vector<Numbers> batches;
  std::vector<int64_t> own;
  std::vector<bool> stands_in, last;
};

template <class Loader>
Seen loop(Loader& loader) {
  Seen seen;
  const auto core = loader.core();
  for (auto& batch : loader) {
    seen.batches.push_back(numbers_of(batch.target));
    EXPECT_TRUE(at::equal(batch.data.select(1, 1).to(at::kLong), batch.target));
    seen.own.push_back(core->own_samples());
    seen.stands_in.push_back(core->stands_in());
    seen.last.push_back(core->at_last_batch());
    batch.data.fill_(-7);  // the batch belongs to the loop
    batch.target.fill_(-7);
  }
  return seen;
}

template <class Make>
void expect_dispatched_like_sharded(int world_size, DataLoaderOptions options, const Make& make) {
  run_loaders(world_size, [&](int rank, const auto& peers) {
    auto alone = data_loader(make(0), options);
    alone.bind(rank, world_size, at::kCPU);
    const Seen expected = loop(alone);
    for (const int64_t workers : {0, 1}) {
      DataLoaderOptions dispatched = options;
      dispatched.dispatch_batches = true;
      dispatched.workers = workers;
      auto loader = data_loader(make(rank), dispatched);
      loader.bind(rank, world_size, at::kCPU, peers);
      for (int epoch = 0; epoch < 2; ++epoch) {
        const Seen seen = loop(loader);
        EXPECT_EQ(seen.own, expected.own) << rank;
        EXPECT_EQ(seen.last, expected.last) << rank;
        if (epoch == 0 || !options.shuffle) {
          EXPECT_EQ(seen.batches, expected.batches) << rank;
        }
      }
    }
  });
}

TEST(LoaderDispatch, EveryRank_GetsWhatItWouldHaveRead) {
  for (const int world_size : {2, 3}) {
    for (const int64_t samples : {6, 16, 17}) {
      for (const bool even : {true, false}) {
        expect_dispatched_like_sharded(world_size, {.batch_size = 2, .even_batches = even},
                                       [&](int rank) {
                                         return RankZeroOnly{samples, rank};
                                       });
        expect_dispatched_like_sharded(
            world_size, {.batch_size = 2, .shuffle = true, .seed = 4, .even_batches = even},
            [&](int) { return rows(samples); });
        expect_dispatched_like_sharded(
            world_size, {.batch_size = 6, .drop_last = true, .split_batches = true}, [&](int rank) {
              return RankZeroOnly{samples, rank};
            });
      }
    }
  }
}

// All ranks end with a message, and none waits for another.
void expect_all_refused(const std::string& part, const std::string& elsewhere,
                        const std::function<void(int, std::shared_ptr<detail::LoaderPeers>)>& go) {
  run_loaders(2, [&](int rank, const auto& peers) {
    const std::string message = refusal([&] { go(rank, peers); });
    expect_says(message, part);
    if (rank != 0) expect_says(message, elsewhere);
  });
}

TEST(LoaderDispatch, ErrorOfTheReader_IsThrownByAllRanks) {
  for (const int64_t workers : {0, 1}) {
    expect_all_refused(
        "batch 2 of epoch 0 (samples 8 to 11 of the stream): the socket is closed",
        "rank 0, which reads for all ranks, failed", [&](int rank, const auto& peers) {
          auto loader =
              data_loader(RankZeroOnly{20, rank, 9},
                          {.batch_size = 2, .dispatch_batches = true, .workers = workers});
          loader.bind(rank, 2, at::kCPU, peers);
          loop(loader);
        });
  }
  expect_all_refused("the stream has 1 samples, fewer than the 2 processes", "rank 0, which",
                     [&](int rank, const auto& peers) {
                       auto loader = data_loader(RankZeroOnly{1, rank}, {.dispatch_batches = true});
                       loader.bind(rank, 2, at::kCPU, peers);
                       loop(loader);
                     });
}

// A dataset whose batches have a different number of rows than the requested samples.
struct Summed : torch::data::datasets::BatchDataset<Summed, torch::data::Example<>> {
  torch::data::Example<> get_batch(c10::ArrayRef<size_t>) override {
    return {at::zeros({1, 2}), at::zeros({1}, at::kLong)};
  }
  std::optional<size_t> size() const override { return 8; }
};

TEST(LoaderDispatch, BatchThatCannotBeSplit_IsNamedOnAllRanks) {
  expect_all_refused("a batch cannot be split: it has 1 rows, but 4 samples were requested",
                     "rank 0, which reads for all", [&](int rank, const auto& peers) {
                       auto loader =
                           data_loader(Summed{}, {.batch_size = 2, .dispatch_batches = true});
                       loader.bind(rank, 2, at::kCPU, peers);
                       loop(loader);
                     });
  expect_says(refusal([] { data_loader(NumberMap(4), {.dispatch_batches = true}); }),
              "std::vector<long, std::allocator<long> > cannot be sent to other processes");
}

TEST(Join, RanksWithFewerBatches_RepeatTheirLastOne) {
  for (const int64_t workers : {0, 2}) {
    run_loaders(4, [&](int rank, const auto& peers) {
      auto loader = data_loader(rows(9), {.batch_size = 4, .workers = workers});
      loader.bind(rank, 4, at::kCPU, peers);
      loader.core()->join(true, false);
      EXPECT_EQ(loader.size(), 1);
      const std::vector<std::vector<Numbers>> expected = {
          {{0, 1, 2, 3}}, {{4, 5, 6, 7}}, {{8}}, {{0}}};
      const Seen seen = loop(loader);
      EXPECT_EQ(seen.batches, expected[static_cast<size_t>(rank)]);
      EXPECT_EQ(seen.own, (std::vector<int64_t>{rank == 3 ? 0 : rank == 2 ? 1 : 4}));
      EXPECT_EQ(seen.stands_in[0], rank == 3);
      EXPECT_TRUE(seen.last[0]);
      loader.core()->join(false, std::nullopt);
      EXPECT_EQ(loop(loader).batches[0].size(), 4u);  // batches are even again
    });
  }
}

// Each rank has its own stream, of a different length.
TEST(Join, StreamsThatEndAtDifferentTimes_StayInStepToTheLongest) {
  for (const int64_t workers : {0, 1}) {
    run_loaders(3, [&](int rank, const auto& peers) {
      const int64_t samples[] = {9, 30, 1};
      auto loader = data_loader(RankZeroOnly{samples[rank], 0},
                                {.batch_size = 1, .even_batches = false, .workers = workers});
      loader.bind(rank, 3, at::kCPU, peers);
      loader.core()->join(true, std::nullopt);
      for (int epoch = 0; epoch < 2; ++epoch) {
        const Seen seen = loop(loader);
        ASSERT_EQ(seen.batches.size(), 10u);
        for (size_t step = 0; step < 10; ++step) {
          const bool stands_in = rank == 0 ? step >= 3 : rank == 2;
          EXPECT_EQ(seen.stands_in[step], stands_in) << rank << " " << step;
          EXPECT_EQ(seen.own[step], stands_in ? 0 : 1);
          const auto place = static_cast<int64_t>(rank == 0 ? std::min<size_t>(step, 2) : step);
          EXPECT_EQ(seen.batches[step], (Numbers{rank == 2 ? 0 : 3 * place + rank}));
          EXPECT_EQ(seen.last[step], step == 9);
        }
      }
    });
  }
}

TEST(Join, OfADispatchedLoader_GivesTheRankWithoutRowsAStandIn) {
  run_loaders(3, [&](int rank, const auto& peers) {
    auto loader = data_loader(RankZeroOnly{7, rank}, {.batch_size = 2, .dispatch_batches = true});
    loader.bind(rank, 3, at::kCPU, peers);
    loader.core()->join(true, false);
    const Seen seen = loop(loader);
    ASSERT_EQ(seen.batches.size(), 2u);
    EXPECT_EQ(seen.stands_in, (std::vector<bool>{false, rank > 0}));
    EXPECT_EQ(seen.own[1], rank == 0 ? 1 : 0);
    if (rank > 0) {
      EXPECT_EQ(seen.batches[1], seen.batches[0]);
    }
  });
}

TEST(Join, RankWithoutAnyData_IsNamedOnAllRanks) {
  run_loaders(3, [&](int rank, const auto& peers) {
    auto loader = data_loader(NumberStream(rank == 1 ? 0 : 5), {.batch_size = 1});
    loader.bind(rank, 3, at::kCPU, peers);
    loader.core()->join(true, std::nullopt);
    expect_says(refusal([&] { batches_of(loader); }), "rank 1 has no data at all");
  });
}

TEST(Join, WithinALoopOrAnother_IsRefused) {
  auto loader = data_loader(NumberMap(4));
  const auto core = loader.core();
  expect_says(refusal([&] {
                for ([[maybe_unused]] auto& batch : loader) core->join(true, std::nullopt);
              }),
              "join_uneven_inputs called inside a loop");
  core->join(true, std::nullopt);
  expect_says(refusal([&] { core->join(true, std::nullopt); }),
              "join_uneven_inputs called inside join_uneven_inputs");
}

TEST(Bind, FewerSamplesThanProcesses_AreRefused) {
  auto loader = data_loader(NumberMap(3));
  expect_says(refusal([&] { loader.bind(0, 4, at::kCPU); }),
              "dataset has 3 samples, fewer than the 4 processes");
  EXPECT_EQ(loader.size(), 3);  // still usable
  auto stream = data_loader(NumberStream(3));
  stream.bind(0, 4, at::kCPU);
  expect_says(refusal([&] { batches_of(stream); }),
              "the stream has 3 samples, fewer than the 4 processes");
}

}  // namespace
}  // namespace coupler
