// ShardLayout: all ranks are simulated in one process. Transfers are executed by hand on plain
// arrays, as the functions of strategy/shard_transfer.h execute them over a communicator.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "strategy/shard_unit.h"

namespace coupler::strategy {
namespace {

using Array = std::vector<int64_t>;

constexpr int64_t kNothing = -1;

struct Case {
  Model model;
  PlannedUnit unit;
  int ranks = 1;

  void add(int64_t numel, std::vector<uint64_t> bounds, bool trains = true) {
    const size_t index = model.parameters.size();
    const at::Tensor tensor = at::empty({numel}, at::TensorOptions().device(at::kMeta));
    model.parameters.push_back({"p" + std::to_string(index), tensor.set_requires_grad(trains), 0});
    unit.parameters.push_back({index, std::move(bounds)});
  }
  std::vector<sharding::ShardLayout> layouts() const {
    std::vector<sharding::ShardLayout> result;
    for (int rank = 0; rank < ranks; ++rank) result.push_back(layout_of(unit, model, rank, ranks));
    return result;
  }
};

// A different value for every element of the unit.
int64_t value_of(const sharding::ShardPart& part, int64_t element) {
  return static_cast<int64_t>(part.index + 1) * 1'000'000 + element;
}

// A rank's shard, cut out of the whole parameters.
Array shard_of(const sharding::ShardLayout& layout) {
  Array shard(static_cast<size_t>(layout.shard_numel), kNothing);
  int64_t overlapping = 0;
  for (const sharding::ShardPart& part : layout.parts) {
    for (int64_t i = part.begin; i < part.end; ++i) {
      int64_t& place = shard.at(static_cast<size_t>(part.shard_offset + i - part.begin));
      overlapping += place != kNothing;
      place = value_of(part, i);
    }
  }
  EXPECT_EQ(overlapping, 0) << "parts of a shard overlap";
  return shard;
}

// The position in the whole unit of each element of a transfer, in the order of a collective: by
// rank, then by run.
std::vector<size_t> places_of(const sharding::ShardTransfer& transfer, int ranks) {
  std::vector<size_t> places;
  for (int r = 0; r < ranks; ++r) {
    for (const sharding::ShardRun& run : transfer.runs) {
      for (int64_t i = 0; i < run.count(r); ++i) {
        places.push_back(static_cast<size_t>(run.bounds[static_cast<size_t>(r)] + i));
      }
    }
  }
  return places;
}

Array gathered(const std::vector<sharding::ShardLayout>& layouts) {
  Array whole(static_cast<size_t>(layouts[0].numel), kNothing);
  std::vector<Array> shards;
  for (const sharding::ShardLayout& layout : layouts) shards.push_back(shard_of(layout));
  for (size_t t = 0; t < layouts[0].transfers.size(); ++t) {
    Array sent;
    for (const sharding::ShardLayout& layout : layouts) {
      const Array& shard = shards[static_cast<size_t>(layout.rank)];
      const sharding::ShardTransfer& transfer = layout.transfers[t];
      const auto count = transfer.counts[static_cast<size_t>(layout.rank)];
      const auto begin = shard.begin() + transfer.shard_offset;
      sent.insert(sent.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
    }
    const auto places = places_of(layouts[0].transfers[t], layouts[0].ranks);
    EXPECT_EQ(places.size(), sent.size());
    for (size_t i = 0; i < places.size(); ++i) whole.at(places[i]) = sent[i];
  }
  return whole;
}

void expect_gather_gives_the_whole(const std::vector<sharding::ShardLayout>& layouts) {
  const Array whole = gathered(layouts);
  for (const sharding::ShardPart& part : layouts[0].parts) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < part.numel; ++i) {
      wrong += whole[static_cast<size_t>(part.offset + i)] != value_of(part, i);
    }
    EXPECT_EQ(wrong, 0) << "parameter " << part.index;
  }
}

// Rank r contributes (r + 1) times each value.
void expect_reduction_ends_in_the_parts(const Case& test,
                                        const std::vector<sharding::ShardLayout>& layouts) {
  Array whole(static_cast<size_t>(layouts[0].numel), 0);
  for (const sharding::ShardPart& part : layouts[0].parts) {
    for (int64_t i = 0; i < part.numel; ++i) {
      whole[static_cast<size_t>(part.offset + i)] = value_of(part, i);
    }
  }
  const int64_t times = test.ranks * (test.ranks + 1) / 2;
  for (const sharding::ShardLayout& layout : layouts) {
    Array shard(static_cast<size_t>(layout.shard_numel), kNothing);
    for (const sharding::ShardTransfer& transfer : layout.transfers) {
      if (!transfer.trains) continue;
      const auto places = places_of(transfer, layout.ranks);
      const auto rank = transfer.counts.begin() + layout.rank;
      const auto before = std::accumulate(transfer.counts.begin(), rank, uint64_t{0});
      for (uint64_t i = 0; i < *rank; ++i) {
        shard.at(static_cast<size_t>(transfer.shard_offset) + i) =
            whole[places[before + i]] * times;
      }
    }
    for (const sharding::ShardPart& part : layout.parts) {
      if (!test.model.parameters[part.index].tensor.requires_grad()) continue;
      int64_t wrong = 0;
      for (int64_t i = part.begin; i < part.end; ++i) {
        wrong += shard[static_cast<size_t>(part.shard_offset + i - part.begin)] !=
                 value_of(part, i) * times;
      }
      EXPECT_EQ(wrong, 0) << "parameter " << part.index << " on rank " << layout.rank;
    }
  }
}

void expect_sound(const Case& test, const std::vector<sharding::ShardLayout>& layouts) {
  for (const sharding::ShardLayout& layout : layouts) {
    ASSERT_EQ(layout.parts.size(), test.unit.parameters.size());
    EXPECT_EQ(layout.numel, layouts[0].numel);
    ASSERT_EQ(layout.transfers.size(), layouts[0].transfers.size());
    std::vector<int> covered(static_cast<size_t>(layout.numel), 0);
    int64_t travels = 0;
    for (size_t t = 0; t < layout.transfers.size(); ++t) {
      const sharding::ShardTransfer& transfer = layout.transfers[t];
      EXPECT_EQ(transfer.counts, layouts[0].transfers[t].counts) << "ranks disagree";
      EXPECT_EQ(transfer.trains, layouts[0].transfers[t].trains);
      const auto [least, most] =
          std::minmax_element(transfer.counts.begin(), transfer.counts.end());
      EXPECT_EQ(transfer.even, *least == *most);
      EXPECT_EQ(std::accumulate(transfer.counts.begin(), transfer.counts.end(), uint64_t{0}),
                static_cast<uint64_t>(transfer.numel));
      EXPECT_EQ(transfer.shard_offset % 16, 0);
      EXPECT_GT(transfer.numel, 0);
      for (const size_t place : places_of(transfer, layout.ranks)) ++covered.at(place);
      travels += transfer.numel;
    }
    EXPECT_LE(*std::max_element(covered.begin(), covered.end()), 1)
        << "an element is transferred twice";
    int64_t elements = 0, end = 0;
    for (const sharding::ShardPart& part : layout.parts) {
      EXPECT_EQ(part.offset % 16, 0);
      EXPECT_GE(part.offset, end) << "parameters overlap";
      end = part.offset + part.numel;
      elements += part.numel;
      const auto begin = covered.begin() + part.offset;
      EXPECT_EQ(std::count(begin, begin + part.numel, 1), part.numel)
          << "some elements are not transferred";
      const auto& bounds =
          test.unit.parameters[static_cast<size_t>(&part - &layout.parts[0])].bounds;
      EXPECT_EQ(part.begin, static_cast<int64_t>(bounds[static_cast<size_t>(layout.rank)]));
      EXPECT_EQ(part.end, static_cast<int64_t>(bounds[static_cast<size_t>(layout.rank) + 1]));
    }
    EXPECT_LE(travels, elements + 16 * static_cast<int64_t>(layout.parts.size()));
  }
  expect_gather_gives_the_whole(layouts);
  expect_reduction_ends_in_the_parts(test, layouts);
}

std::vector<uint64_t> even_bounds(int64_t numel, int ranks, int64_t row = 1) {
  std::vector<uint64_t> bounds;
  const int64_t rows = numel / row, each = (rows + ranks - 1) / ranks;
  for (int r = 0; r <= ranks; ++r) {
    bounds.push_back(static_cast<uint64_t>(std::min(rows, each * r) * row));
  }
  return bounds;
}

std::vector<uint64_t> whole_at(int64_t numel, int owner, int ranks) {
  std::vector<uint64_t> bounds(static_cast<size_t>(ranks) + 1, 0);
  std::fill(bounds.begin() + owner + 1, bounds.end(), static_cast<uint64_t>(numel));
  return bounds;
}

Case random_case(uint32_t seed) {
  std::mt19937 random(seed);
  constexpr int64_t kSizes[] = {1, 2, 15, 16, 17, 100, 1000, 5000, 20000, 40000};
  Case test;
  test.ranks = 1 + static_cast<int>(random() % 5);
  const auto parameters = 1 + random() % 7;
  for (size_t i = 0; i < parameters; ++i) {
    const int64_t numel = random() % 12 == 0 ? 0 : kSizes[random() % std::size(kSizes)];
    std::vector<uint64_t> bounds;
    switch (random() % 4) {
      case 0:
        bounds = even_bounds(numel, test.ranks);
        break;
      case 1:
        bounds = whole_at(numel, static_cast<int>(random() % static_cast<uint32_t>(test.ranks)),
                          test.ranks);
        break;
      default:
        bounds = {0, static_cast<uint64_t>(numel)};
        for (int r = 1; r < test.ranks; ++r) {
          bounds.push_back(random() % (static_cast<uint64_t>(numel) + 1));
        }
        std::sort(bounds.begin(), bounds.end());
    }
    test.add(numel, std::move(bounds), random() % 4 != 0);
  }
  return test;
}

TEST(ShardLayout, RandomBounds_GatherAndReduceEveryElementOnce) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Case test = random_case(seed);
    if (std::all_of(test.model.parameters.begin(), test.model.parameters.end(),
                    [](const auto& parameter) { return parameter.tensor.numel() == 0; })) {
      continue;
    }
    expect_sound(test, test.layouts());
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(ShardLayout, OneRank_OneTransferThatIsTheUnit) {
  Case test;
  for (const int64_t numel : {100, 20000, 3}) test.add(numel, {0, static_cast<uint64_t>(numel)});
  const auto layouts = test.layouts();
  expect_sound(test, layouts);
  ASSERT_EQ(layouts[0].transfers.size(), 1u);
  EXPECT_FALSE(layouts[0].transfers[0].packed());
  // The unit's memory is a multiple of 16 elements, so that the last vector is whole.
  EXPECT_EQ((layouts[0].shard_numel + 15) / 16 * 16, layouts[0].numel);
}

class Ranks : public ::testing::TestWithParam<int> {};

// As ZeRO partitions: one buffer, cut into as many pieces as there are ranks.
TEST_P(Ranks, FlatBounds_OneTransferInPlace) {
  Case test;
  test.ranks = GetParam();
  const std::vector<int64_t> sizes = {300, 50, 20000, 64, 1000};
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const int64_t each = (total + test.ranks - 1) / test.ranks;
  int64_t begin = 0;
  for (const int64_t numel : sizes) {
    std::vector<uint64_t> bounds;
    for (int r = 0; r <= test.ranks; ++r) {
      bounds.push_back(static_cast<uint64_t>(std::clamp(each * r - begin, int64_t{0}, numel)));
    }
    test.add(numel, std::move(bounds));
    begin += numel;
  }
  const auto layouts = test.layouts();
  expect_sound(test, layouts);
  ASSERT_EQ(layouts[0].transfers.size(), 1u);
  EXPECT_FALSE(layouts[0].transfers[0].packed());
}

// As fsdp shards: each parameter by its rows.
TEST_P(Ranks, Dimension0_LargeParametersAloneSmallOnesPacked) {
  Case test;
  test.ranks = GetParam();
  for (const int64_t numel : {40000, 200, 60000, 100, 20000}) {
    test.add(numel, even_bounds(numel, test.ranks, 10));
  }
  const auto layouts = test.layouts();
  expect_sound(test, layouts);
  const auto& transfers = layouts[0].transfers;
  ASSERT_EQ(transfers.size(), 4u);
  for (size_t t = 0; t < 3; ++t) EXPECT_FALSE(transfers[t].packed()) << t;
  EXPECT_TRUE(transfers[3].packed());
  EXPECT_EQ(transfers[3].runs.size(), 2u);
}

// As c_round_robin assigns: whole parameters in turn. Each turn is one run.
TEST_P(Ranks, RoundRobin_OneRunATurn) {
  Case test;
  test.ranks = GetParam();
  constexpr int kParameters = 12;
  for (int i = 0; i < kParameters; ++i) {
    test.add(20000, whole_at(20000, i % test.ranks, test.ranks));
  }
  const auto layouts = test.layouts();
  expect_sound(test, layouts);
  const auto turns = static_cast<size_t>((kParameters + test.ranks - 1) / test.ranks);
  EXPECT_EQ(layouts[0].transfers.size(), turns);
  const bool divides = kParameters % test.ranks == 0;
  EXPECT_EQ(layouts[0].transfers.back().even, divides);
}

INSTANTIATE_TEST_SUITE_P(TwoToFive, Ranks, ::testing::Values(2, 3, 4, 5));

TEST(ShardLayout, FrozenAlone_TransferDoesNotTrain) {
  Case test;
  test.ranks = 2;
  test.add(40000, {0, 20000, 40000}, false);
  test.add(40000, {0, 20000, 40000}, true);
  const auto layouts = test.layouts();
  expect_sound(test, layouts);
  ASSERT_EQ(layouts[0].transfers.size(), 2u);
  EXPECT_FALSE(layouts[0].transfers[0].trains);
  EXPECT_TRUE(layouts[0].transfers[1].trains);
}

TEST(ShardLayout, RankWithNothing_EmptyShard) {
  Case test;
  test.ranks = 3;
  test.add(5, {0, 5, 5, 5});
  const auto layouts = test.layouts();
  expect_sound(test, layouts);
  EXPECT_EQ(layouts[0].shard_numel, 5);
  EXPECT_EQ(layouts[1].shard_numel, 0);
  EXPECT_EQ(layouts[2].shard_numel, 0);
}

}  // namespace
}  // namespace coupler::strategy
