// UseOrder against a plain model of it: a map from pairs to what followed them.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "residency/residency_policy.h"

namespace coupler::sharding {
namespace {

constexpr size_t kEnd = residency::UseOrder::kNone;  // in a sequence: the end of a pass

void play(residency::UseOrder& order, const std::vector<size_t>& sequence) {
  for (const size_t unit : sequence) {
    unit == kEnd ? order.end_of_pass() : void(order.use(unit));
  }
}

uint64_t hash_of(const std::vector<size_t>& sequence) {
  residency::UseOrder order;
  play(order, sequence);
  return order.hash();
}

std::vector<size_t> random_sequence(std::mt19937& random, size_t length, size_t units) {
  std::vector<size_t> sequence;
  for (size_t i = 0; i < length; ++i) {
    const size_t unit = random() % (units + 1);
    sequence.push_back(unit == units ? kEnd : unit);
  }
  return sequence;
}

// What last followed each pair.
std::map<std::pair<size_t, size_t>, size_t> learned_from(const std::vector<size_t>& sequence) {
  std::map<std::pair<size_t, size_t>, size_t> learned;
  size_t before = kEnd, current = kEnd;
  for (const size_t unit : sequence) {
    if (unit == current) continue;
    if (current != kEnd) learned[{before, current}] = unit;
    before = unit == kEnd ? kEnd : current;
    current = unit;
  }
  return learned;
}

TEST(UseOrder, RandomSequences_NextIsWhatFollowedLast) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const size_t units = 1 + random() % 6;
    const auto sequence = random_sequence(random, random() % 60, units);
    residency::UseOrder order;
    play(order, sequence);
    const auto learned = learned_from(sequence);
    for (size_t before = 0; before <= units; ++before) {
      const size_t first = before == units ? kEnd : before;
      for (size_t unit = 0; unit < units; ++unit) {
        const auto found = learned.find({first, unit});
        EXPECT_EQ(order.next(first, unit), found == learned.end() ? kEnd : found->second)
            << "seed " << seed << ": " << first << ", " << unit;
      }
    }
  }
}

TEST(UseOrder, RandomSequences_HashTellsWhatWasLearntAndNothingElse) {
  std::map<std::map<std::pair<size_t, size_t>, size_t>, uint64_t> hash_by_learned;
  std::set<uint64_t> hashes;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const auto sequence = random_sequence(random, random() % 12, 1 + random() % 4);
    const uint64_t hash = hash_of(sequence);
    EXPECT_EQ(hash, hash_of(sequence));
    const auto [known, is_new] = hash_by_learned.emplace(learned_from(sequence), hash);
    EXPECT_EQ(known->second, hash) << "seed " << seed;
    hashes.insert(hash);
  }
  EXPECT_GT(hash_by_learned.size(), 500u);
  EXPECT_EQ(hashes.size(), hash_by_learned.size()) << "different orders with one hash";
}

TEST(UseOrder, ForwardAndBackward_ToldApart) {
  residency::UseOrder order;
  play(order, {0, 1, 2, 1, 0, kEnd});
  EXPECT_EQ(order.next(0, 1), 2u);
  EXPECT_EQ(order.next(2, 1), 0u);
  EXPECT_EQ(order.next(kEnd, 0), 1u);
  EXPECT_EQ(order.next(1, 0), kEnd) << "the pass ended there";
}

TEST(UseOrder, SameUnitAgain_ChangesNothing) {
  residency::UseOrder order;
  EXPECT_TRUE(order.use(3));
  EXPECT_FALSE(order.use(3));
  EXPECT_EQ(order.hash(), 0u);
  EXPECT_TRUE(order.use(4));
  EXPECT_EQ(order.hash(), hash_of({3, 4}));
  EXPECT_EQ(order.before(), 3u);
  EXPECT_EQ(order.current(), 4u);
}

TEST(UseOrder, SecondPassAlike_HashStays) {
  residency::UseOrder order;
  play(order, {0, 1, 2, 1, 0, kEnd});
  const uint64_t hash = order.hash();
  play(order, {0, 1, 2, 1, 0, kEnd});
  EXPECT_EQ(order.hash(), hash);
  play(order, {0, 2, 0, kEnd});
  EXPECT_NE(order.hash(), hash);
}

TEST(UseOrder, OrderChanged_LastOneCounts) {
  residency::UseOrder order;
  play(order, {0, 1, 2, kEnd, 0, 1, 3, kEnd});
  EXPECT_EQ(order.next(0, 1), 3u);
  play(order, {0, 1, 2, kEnd});
  EXPECT_EQ(order.next(0, 1), 2u);
}

TEST(UseOrder, EndOfPass_NothingFollowsAcrossIt) {
  residency::UseOrder order;
  play(order, {0, 1, kEnd, 2, kEnd});
  EXPECT_EQ(order.next(0, 1), kEnd);
  EXPECT_EQ(order.current(), kEnd);
  residency::UseOrder fresh;
  fresh.end_of_pass();
  EXPECT_EQ(fresh.hash(), 0u) << "a pass without uses changes nothing";
}

}  // namespace
}  // namespace coupler::sharding
