// Streaming datasets: each rank's share, the last batch, and refused input.
#include <ATen/Functions.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "loaders.h"

namespace coupler {
namespace {

using testing::batches_of;
using testing::expect_says;
using testing::Numbers;
using testing::NumberStream;
using testing::refusal;

// A torch stream: blocks of at most `most` samples, as tensors.
struct BlockStream : torch::data::datasets::StatefulDataset<BlockStream, torch::data::Example<>> {
  BlockStream(int64_t samples, int64_t at_most) : count(samples), most(at_most) {}
  std::optional<torch::data::Example<>> get_batch(size_t wanted) override {
    const int64_t end = std::min({place + static_cast<int64_t>(wanted), place + most, count});
    if (place == end) return std::nullopt;
    const at::Tensor numbers = at::arange(std::exchange(place, end), end, at::kLong);
    return torch::data::Example<>{numbers.unsqueeze(1).repeat({1, 2}), numbers};
  }
  void reset() override { place = 0; }
  std::optional<size_t> size() const override { return std::nullopt; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}
  int64_t count, most, place = 0;
};

// One epoch of one rank: its samples, and those that count.
struct Share {
  Numbers samples, own;
  size_t batches = 0, last_batches = 0;
};

Share share_of(int64_t count, const DataLoaderOptions& options, int rank, int world_size) {
  auto loader = data_loader(NumberStream(count), options);
  loader.bind(rank, world_size, at::kCPU);
  Share share;
  const auto core = loader.core();
  for (const Numbers& batch : loader) {
    ++share.batches;
    share.last_batches += core->at_last_batch() ? 1 : 0;
    if (core->at_last_batch()) {
      EXPECT_EQ(share.last_batches, 1u);
    }
    share.samples.insert(share.samples.end(), batch.begin(), batch.end());
    const auto own = batch.begin() + core->own_samples();
    share.own.insert(share.own.end(), batch.begin(), own);
  }
  return share;
}

struct Recorded {
  int reproduced = 0, too_small = 0, not_split = 0, wrong_len = 0;
};

Recorded compare(const std::string& name) {
  std::ifstream file(std::string(COUPLER_SOURCE_DIR) + "/tests/unit/core/data/fixtures/" + name);
  Recorded counts;
  for (const auto& row : nlohmann::json::parse(file)) {
    const int world_size = row["world"];
    const int64_t count = row["n"], batch_size = row["batch_size"];
    const bool split = row["split_batches"] != 0, drop_last = row["drop_last"] != 0;
    const DataLoaderOptions options{
        .batch_size = batch_size, .drop_last = drop_last, .split_batches = split};
    const int64_t step = split ? batch_size : batch_size * world_size;
    const bool not_split = split && batch_size == 1 && world_size > 1;
    const bool too_small = count < world_size || (drop_last && count < step);
    if (not_split || too_small) {
      expect_says(refusal([&] { share_of(count, options, 0, world_size); }),
                  not_split    ? "batch_size 1 cannot be split over"
                  : count == 0 ? "has no samples"
                  : count < world_size
                      ? "fewer than the " + std::to_string(world_size) + " processes"
                      : "yields no batch");
      ++(not_split ? counts.not_split : counts.too_small);
      continue;
    }
    ++counts.reproduced;
    counts.wrong_len += row.contains("len_mismatch") ? 1 : 0;
    for (int rank = 0; rank < world_size; ++rank) {
      const Share share = share_of(count, options, rank, world_size);
      EXPECT_EQ(share.samples, row["shards"][static_cast<size_t>(rank)].get<Numbers>())
          << row.dump() << " rank " << rank;
      EXPECT_EQ(share.last_batches, 1u) << row.dump();
    }
  }
  return counts;
}

TEST(Stream, RecordedShards_AreReproduced) {
  const Recorded counts = compare("iterable_dataset_shard.json");
  EXPECT_EQ(counts.reproduced + counts.too_small, 884);
  EXPECT_EQ(counts.not_split, 0);
  EXPECT_EQ(counts.too_small, 142);
}

// Accelerate silently loses every sample if a batch of 1 is to be split; Coupler refuses. In rows
// where only its len() is wrong, its batches are right.
TEST(Stream, RecordedSplitShards_AreReproducedButForTheListedDifferences) {
  const Recorded counts = compare("iterable_dataset_shard_split.json");
  EXPECT_EQ(counts.not_split, 72);
  EXPECT_EQ(counts.reproduced + counts.too_small, 432);
  EXPECT_EQ(counts.too_small, 90);
  EXPECT_EQ(counts.wrong_len, 139);
}

TEST(StreamProperty, TenThousandCases_GiveEverySampleOnce) {
  std::mt19937_64 random(20260102);
  const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random() % bound); };
  for (int i = 0; i < 10'000; ++i) {
    const int world_size = static_cast<int>(1 + below(6));
    const bool split = below(2) == 1;
    const int64_t batch_size = (1 + below(6)) * (split ? world_size : 1);
    const int64_t step = split ? batch_size : batch_size * world_size;
    const bool drop_last = below(2) == 1;
    const int64_t count = (drop_last ? step : world_size) + below(90);
    const DataLoaderOptions options{.batch_size = batch_size,
                                    .drop_last = drop_last,
                                    .split_batches = split,
                                    .even_batches = below(2) == 1};
    std::vector<int> seen(static_cast<size_t>(count), 0);
    std::vector<size_t> batches;
    for (int rank = 0; rank < world_size; ++rank) {
      const Share share = share_of(count, options, rank, world_size);
      batches.push_back(share.batches);
      for (const int64_t sample : share.own) ++seen.at(static_cast<size_t>(sample));
      if (drop_last || !options.even_batches) {
        ASSERT_EQ(share.own, share.samples);
      }
    }
    const int64_t kept = drop_last ? count - count % step : count;
    for (int64_t k = 0; k < count; ++k)
      ASSERT_EQ(seen[static_cast<size_t>(k)], k < kept ? 1 : 0) << "case " << i;
    if (drop_last || options.even_batches) {
      ASSERT_EQ(batches.front(), batches.back());
    }
  }
}

TEST(Stream, BlocksOfTorch_ArePutTogetherAndFilled) {
  for (const int64_t most : {1, 3, 100}) {
    Numbers targets[2];
    for (int rank = 0; rank < 2; ++rank) {
      auto loader = data_loader(BlockStream(7, most), {.batch_size = 2});
      loader.bind(rank, 2, at::kCPU);
      for (auto& batch : loader) {
        EXPECT_EQ(batch.data.sizes(), (at::IntArrayRef{2, 2}));
        EXPECT_TRUE(at::equal(batch.data.select(1, 1), batch.target));
        for (int64_t i = 0; i < 2; ++i) targets[rank].push_back(batch.target[i].item<int64_t>());
        batch.data.fill_(-1);  // the loop's own batch: must not come back in the last step
        batch.target.fill_(-1);
      }
    }
    EXPECT_EQ(targets[0], (Numbers{0, 1, 4, 5}));
    EXPECT_EQ(targets[1], (Numbers{2, 3, 6, 0}));
  }
}

TEST(Stream, LoopedTwice_IsResetAndToldTheEpoch) {
  struct Shifted : NumberStream {
    using NumberStream::NumberStream;
    void set_epoch(int64_t epoch) { shift = 100 * epoch; }
    std::optional<int64_t> next() {
      const auto number = NumberStream::next();
      return number ? std::optional<int64_t>(*number + shift) : std::nullopt;
    }
    int64_t shift = -1;
  };
  auto loader = data_loader(Shifted(3), {.batch_size = 2, .even_batches = false});
  EXPECT_EQ(batches_of(loader), (std::vector<Numbers>{{0, 1}, {2}}));
  EXPECT_EQ(batches_of(loader), (std::vector<Numbers>{{100, 101}, {102}}));
  for ([[maybe_unused]] auto& batch : loader) break;
  EXPECT_EQ(batches_of(loader), (std::vector<Numbers>{{300, 301}, {302}}));
}

TEST(Stream, Worker_ReadsTheSameInTheBackground) {
  auto loader =
      data_loader(NumberStream(1000), {.batch_size = 7, .even_batches = false, .workers = 1});
  auto inline_loader = data_loader(NumberStream(1000), {.batch_size = 7, .even_batches = false});
  const auto expected = batches_of(inline_loader);
  for (int epoch = 0; epoch < 20; ++epoch) {
    for ([[maybe_unused]] auto& batch : loader) break;
    ASSERT_EQ(batches_of(loader), expected);
  }
}

TEST(Stream, WrongInput_IsRefusedNamingIt) {
  const auto loop = [](auto dataset, const DataLoaderOptions& options) {
    return refusal([&] {
      auto loader = data_loader(dataset, options);
      for ([[maybe_unused]] auto& batch : loader) {
      }
    });
  };
  expect_says(loop(NumberStream(0), {}), "the stream has no samples");
  expect_says(loop(NumberStream(3), {.batch_size = 4, .drop_last = true}),
              "a stream of 3 samples yields no batch: with drop_last every step needs 4");
  expect_says(loop(NumberStream(3), {.shuffle = true}),
              "shuffle is set, but its dataset is a stream");
  expect_says(loop(NumberStream(3), {.workers = 2}), "workers is 2, but its dataset is a stream");
  expect_says(loop(NumberStream(3), {.dispatch_batches = true}),
              "std::vector<long, std::allocator<long> > cannot be sent");

  struct Greedy : BlockStream {
    using BlockStream::BlockStream;
    std::optional<torch::data::Example<>> get_batch(size_t wanted) override {
      return BlockStream::get_batch(wanted + 1);
    }
  };
  expect_says(loop(Greedy(9, 9), {.batch_size = 2}), "get_batch(2) returned 3 samples");

  struct Lopsided : BlockStream {
    using BlockStream::BlockStream;
    std::optional<torch::data::Example<>> get_batch(size_t) override {
      return torch::data::Example<>{at::zeros({2, 3}), at::zeros({3})};
    }
  };
  expect_says(loop(Lopsided(9, 9), {.batch_size = 2}),
              "a batch cannot be split: its tensor 1 has 3 rows, another has 2");
  struct Scalar : BlockStream {
    using BlockStream::BlockStream;
    std::optional<torch::data::Example<>> get_batch(size_t) override {
      return torch::data::Example<>{at::zeros({2, 3}), at::zeros({})};
    }
  };
  expect_says(loop(Scalar(9, 9), {.batch_size = 2}), "its tensor 1 is a scalar");
}

}  // namespace
}  // namespace coupler
