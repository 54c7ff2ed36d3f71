#include "data/batch_sampler.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>

namespace coupler::data {
namespace {

using Batches = std::vector<std::vector<size_t>>;

Batches batches(const BatchSampler& sampler) {
  Batches all(sampler.size());
  for (size_t step = 0; step < all.size(); ++step) sampler.batch(step, all[step]);
  return all;
}

Batches batches(const BatchSamplerOptions& spec) { return batches(BatchSampler(spec)); }

std::string sampler_refusal(const BatchSamplerOptions& spec) {
  try {
    BatchSampler sampler(spec);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

// What all ranks together take in one step, in rank order.
std::vector<size_t> joined(BatchSamplerOptions spec, size_t step) {
  std::vector<size_t> all, part;
  for (spec.rank = 0; spec.rank < spec.world_size; ++spec.rank) {
    const BatchSampler sampler(spec);
    if (step >= sampler.size()) continue;
    sampler.batch(step, part);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST(BatchSampler, WholeBatchesOfSeveralRanks_AreDealtRoundRobin) {
  EXPECT_EQ(batches({.samples = 8, .batch_size = 2, .rank = 0, .world_size = 2}),
            (Batches{{0, 1}, {4, 5}}));
  EXPECT_EQ(batches({.samples = 8, .batch_size = 2, .rank = 1, .world_size = 2}),
            (Batches{{2, 3}, {6, 7}}));
}

TEST(BatchSampler, SplitBatches_CutEachBatchInRankOrder) {
  EXPECT_EQ(
      batches({.samples = 8, .batch_size = 4, .rank = 1, .world_size = 2, .split_batches = true}),
      (Batches{{2, 3}, {6, 7}}));
}

TEST(BatchSampler, IncompleteLastStep_IsFilledFromTheStart) {
  EXPECT_EQ(batches({.samples = 7, .batch_size = 2, .rank = 0, .world_size = 2}),
            (Batches{{0, 1}, {4, 5}}));
  EXPECT_EQ(batches({.samples = 7, .batch_size = 2, .rank = 1, .world_size = 2}),
            (Batches{{2, 3}, {6, 0}}));
  // Fewer samples than a step takes: they wrap around more than once.
  EXPECT_EQ(batches({.samples = 1, .batch_size = 2, .rank = 1, .world_size = 2}),
            (Batches{{0, 0}}));
}

TEST(BatchSampler, DropLast_LeavesTheIncompleteStepOut) {
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(
        batches({.samples = 7, .batch_size = 2, .rank = rank, .world_size = 2, .drop_last = true})
            .size(),
        1u);
}

TEST(BatchSampler, WithoutEvenBatches_ARankGetsWhatIsLeft) {
  const BatchSamplerOptions spec{
      .samples = 9, .batch_size = 4, .world_size = 4, .even_batches = false};
  const std::vector<Batches> expected = {{{0, 1, 2, 3}}, {{4, 5, 6, 7}}, {{8}}, {}};
  for (int rank = 0; rank < 4; ++rank) {
    BatchSamplerOptions own = spec;
    own.rank = rank;
    EXPECT_EQ(batches(own), expected[static_cast<size_t>(rank)]);
  }
}

TEST(BatchSampler, WrongSpecs_AreRefusedNamingTheValues) {
  EXPECT_NE(sampler_refusal({.samples = 8, .batch_size = 0}).find("batch_size is 0"),
            std::string::npos);
  EXPECT_NE(sampler_refusal({.samples = 8, .batch_size = -3}).find("-3"), std::string::npos);
  const auto split =
      sampler_refusal({.samples = 8, .batch_size = 6, .world_size = 4, .split_batches = true});
  EXPECT_NE(split.find("batch_size 6"), std::string::npos);
  EXPECT_NE(split.find("4 processes"), std::string::npos);
  EXPECT_NE(sampler_refusal({.samples = 8, .rank = 2, .world_size = 2})
                .find("invalid rank 2 for a world of 2"),
            std::string::npos);
  EXPECT_NE(sampler_refusal({.samples = 8, .start = 9}).find("8 samples cannot begin at sample 9"),
            std::string::npos);
  EXPECT_NE(sampler_refusal({.samples = 8, .batch_size = INT64_MAX, .world_size = 2}).find("2^63"),
            std::string::npos);
}

// Recorded results of Accelerate's own BatchSamplerShard: see fixtures/README.md.
void expect_recorded(const std::string& name, size_t count) {
  std::ifstream file(std::string(COUPLER_SOURCE_DIR) + "/tests/unit/core/data/fixtures/" + name);
  const auto rows = nlohmann::json::parse(file);
  ASSERT_EQ(rows.size(), count);
  for (const auto& row : rows) {
    const int world_size = row["world"];
    for (int rank = 0; rank < world_size; ++rank) {
      const auto got = batches({.samples = row["n"],
                                .batch_size = row["batch_size"],
                                .rank = rank,
                                .world_size = world_size,
                                .split_batches = row["split_batches"] != 0,
                                .drop_last = row["drop_last"] != 0,
                                .even_batches = row["even_batches"] != 0});
      EXPECT_EQ(got, row["shards"][static_cast<size_t>(rank)].get<Batches>())
          << row.dump() << " rank " << rank;
    }
  }
}

TEST(BatchSampler, RecordedShards_AreReproduced) {
  expect_recorded("batch_sampler_shard.json", 1302);
}

TEST(BatchSampler, RecordedShardsOfEvenBatches_AreReproduced) {
  expect_recorded("batch_sampler_shard_even.json", 403);
}

BatchSamplerOptions random_spec(std::mt19937_64& random) {
  const auto below = [&](uint64_t bound) { return random() % bound; };
  BatchSamplerOptions spec;
  spec.world_size = static_cast<int>(1 + below(9));
  spec.samples = below(400);
  spec.split_batches = below(2) == 1;
  spec.batch_size =
      static_cast<int64_t>(1 + below(20)) * (spec.split_batches ? spec.world_size : 1);
  spec.drop_last = below(2) == 1;
  spec.even_batches = below(2) == 1;
  return spec;
}

TEST(BatchPlanProperty, TenThousandSpecs_YieldEverySampleOnceUnlessDroppedOrFilled) {
  std::mt19937_64 random(20260101);
  for (int i = 0; i < 10'000; ++i) {
    BatchSamplerOptions spec = random_spec(random);
    std::vector<int> seen(spec.samples, 0);
    std::vector<size_t> sizes;
    for (spec.rank = 0; spec.rank < spec.world_size; ++spec.rank) {
      const auto own = batches(spec);
      sizes.push_back(own.size());
      for (const auto& batch : own) {
        ASSERT_FALSE(batch.empty());
        for (const size_t position : batch) ++seen.at(position);
      }
    }
    const size_t global =
        static_cast<size_t>(spec.batch_size * (spec.split_batches ? 1 : spec.world_size));
    const size_t rest = spec.samples % global;
    if (spec.drop_last) {
      for (size_t k = 0; k < seen.size(); ++k) ASSERT_EQ(seen[k], k < seen.size() - rest ? 1 : 0);
    } else if (spec.even_batches) {
      ASSERT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times >= 1; }));
      const int yielded = std::accumulate(seen.begin(), seen.end(), 0);
      const size_t steps = (spec.samples + global - 1) / global;
      ASSERT_EQ(static_cast<size_t>(yielded), steps * global);
    } else {
      ASSERT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
    }
    ASSERT_LE(sizes.front() - sizes.back(), spec.drop_last || spec.even_batches ? 0u : 1u);
  }
}

// An epoch may be resumed at any sample.
TEST(BatchPlanProperty, TenThousandSpecs_OwnEverySampleFromTheStartOnExactlyOnce) {
  std::mt19937_64 random(20260103);
  for (int i = 0; i < 10'000; ++i) {
    BatchSamplerOptions spec = random_spec(random);
    spec.start = random() % 3 == 0 ? 0 : random() % (spec.samples + 1);
    std::vector<int> owned(spec.samples, 0);
    for (spec.rank = 0; spec.rank < spec.world_size; ++spec.rank) {
      const BatchSampler sampler(spec);
      const auto own = batches(sampler);
      for (size_t step = 0; step < own.size(); ++step) {
        ASSERT_LE(sampler.own(step), own[step].size());
        if (spec.drop_last || !spec.even_batches) {
          ASSERT_EQ(sampler.own(step), own[step].size());
        }
        for (size_t k = 0; k < sampler.own(step); ++k) ++owned.at(own[step][k]);
      }
    }
    const size_t global = BatchSampler(BatchSamplerOptions{.batch_size = spec.batch_size,
                                                           .world_size = spec.world_size,
                                                           .split_batches = spec.split_batches})
                              .step_samples();
    const size_t rest = spec.drop_last ? (spec.samples - spec.start) % global : 0;
    for (size_t k = 0; k < owned.size(); ++k)
      ASSERT_EQ(owned[k], k >= spec.start && k < spec.samples - rest ? 1 : 0) << i << " " << k;
  }
}

TEST(BatchPlanProperty, SplitBatches_TakeTheSameSamplesInEveryStepForEveryWorld) {
  for (const size_t samples : {1u, 23u, 24u, 25u, 240u, 1437u}) {
    for (const bool drop_last : {false, true}) {
      const BatchSamplerOptions one{
          .samples = samples, .batch_size = 24, .split_batches = true, .drop_last = drop_last};
      const auto expected = batches(one);
      for (const int world_size : {2, 3, 4, 6, 8, 12, 24}) {
        BatchSamplerOptions many = one;
        many.world_size = world_size;
        for (size_t step = 0; step < expected.size(); ++step)
          EXPECT_EQ(joined(many, step), expected[step]) << world_size << " " << step;
      }
    }
  }
}

// The values come from a separate Python program, written from the specification in
// batch_sampler.h.
TEST(ShuffledOrder, KnownSeedsAndEpochs_GiveTheSpecifiedOrder) {
  const auto order = [](size_t count, uint64_t seed, uint64_t epoch) {
    std::vector<size_t> out;
    shuffled_order(count, seed, epoch, out);
    return out;
  };
  using Order = std::vector<size_t>;
  EXPECT_EQ(order(10, 0, 0), (Order{9, 4, 0, 5, 2, 1, 6, 8, 3, 7}));
  EXPECT_EQ(order(10, 0, 1), (Order{7, 0, 1, 6, 4, 3, 5, 9, 8, 2}));
  EXPECT_EQ(order(10, 1, 0), (Order{7, 8, 1, 0, 4, 2, 9, 6, 5, 3}));
  EXPECT_EQ(order(10, ~uint64_t{0}, 7), (Order{7, 2, 9, 0, 6, 3, 8, 5, 4, 1}));
  const Order large = order(60'000, 42, 3);
  EXPECT_EQ(Order(large.begin(), large.begin() + 5), (Order{34159, 35722, 41219, 29195, 18007}));
  EXPECT_EQ(Order(large.end() - 5, large.end()), (Order{22645, 57476, 42804, 13417, 31384}));
  EXPECT_EQ(order(0, 1, 2), Order{});
  EXPECT_EQ(order(1, 1, 2), Order{0});
}

TEST(ShuffledOrder, AnyOrder_IsAPermutation) {
  std::vector<size_t> order{9, 9, 9};  // old content must not matter
  for (const size_t count : {2u, 3u, 100u, 1437u}) {
    shuffled_order(count, 5, 6, order);
    auto sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(sorted[i], i);
  }
}

// All 24 orders of 4 samples over 24,000 epochs: chi-squared with 23 degrees of freedom stays below
// 58 in all but one of 10,000 runs of a fair shuffle. The seed is fixed, so the test is not flaky.
TEST(ShuffledOrder, OverManyEpochs_EveryOrderIsAsLikely) {
  std::map<std::vector<size_t>, int> counts;
  std::vector<size_t> order;
  for (uint64_t epoch = 0; epoch < 24'000; ++epoch) {
    shuffled_order(4, 0, epoch, order);
    ++counts[order];
  }
  ASSERT_EQ(counts.size(), 24u);
  double chi_squared = 0;
  for (const auto& [_, count] : counts) chi_squared += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_squared, 58);
}

}  // namespace
}  // namespace coupler::data
