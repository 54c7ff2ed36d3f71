// Circulant rounds compared with a naive reference: the rounds of all ranks, played on their data.
#include "gloo_cpu/circulant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

namespace db::gloo_cpu {
namespace {

using Data = std::vector<uint64_t>;

// So that a sum has each rank's element once, and at its place.
uint64_t element(int32_t rank, uint64_t i) { return (uint64_t{1} << rank) * (i % 7 + 1); }
uint64_t sum(int32_t size, uint64_t i) { return ((uint64_t{1} << size) - 1) * (i % 7 + 1); }

std::vector<int32_t> parts_in(const std::vector<PartRun>& runs) {
  std::vector<int32_t> parts;
  for (const PartRun& run : runs)
    for (int32_t i = 0; i < run.count; ++i) parts.push_back(run.first + i);
  return parts;
}

// The ranks of a job, and `count` elements of each, in parts that may differ by one element.
class Ranks {
 public:
  Ranks(int32_t size, uint64_t count) : size_(size), data_(static_cast<size_t>(size), Data(count)) {
    for (int32_t rank = 0; rank < size; ++rank) {
      rounds_.push_back(circulant_rounds(rank, size));
      for (uint64_t i = 0; i < count; ++i) of(rank)[i] = element(rank, i);
    }
    const auto parts = static_cast<uint64_t>(size);
    for (uint64_t i = 0; i <= parts; ++i)
      begins_.push_back(i * (count / parts) + std::min(i, count % parts));
  }

  size_t round_count() const { return rounds_[0].size(); }
  const CirculantRound& round(int32_t rank, size_t number) const {
    return rounds_[static_cast<size_t>(rank)][number];
  }
  Data& of(int32_t rank) { return data_[static_cast<size_t>(rank)]; }
  uint64_t begin(int32_t part) const { return begins_[static_cast<size_t>(part)]; }

  // All ranks at the same time: what is sent is what was there before.
  void reduce(size_t number) {
    const std::vector<Data> before = data_;
    for (int32_t rank = 0; rank < size_; ++rank) {
      const CirculantRound& own = round(rank, number);
      const Data& sent = before[static_cast<size_t>(own.from)];
      for (const int32_t part : parts_in(round(own.from, number).given))
        for (uint64_t i = begin(part); i < begin(part + 1); ++i) of(rank)[i] += sent[i];
    }
  }
  void gather(size_t number) {
    const std::vector<Data> before = data_;
    for (int32_t rank = 0; rank < size_; ++rank) {
      const CirculantRound& own = round(rank, number);
      const Data& sent = before[static_cast<size_t>(own.to)];
      for (const int32_t part : parts_in(round(own.to, number).received))
        for (uint64_t i = begin(part); i < begin(part + 1); ++i) of(rank)[i] = sent[i];
    }
  }

 private:
  const int32_t size_;
  std::vector<Data> data_;
  std::vector<std::vector<CirculantRound>> rounds_;
  std::vector<uint64_t> begins_;  // of parts, and the end
};

TEST(GlooCirculant, ReduceScatterThenAllGather_AnyNumberOfRanks_MatchTheReference) {
  for (int32_t size = 1; size <= 40; ++size) {
    for (const uint64_t count : {0, 1, 39, 101, 200}) {
      Ranks ranks(size, count);
      for (size_t i = 0; i < ranks.round_count(); ++i) ranks.reduce(i);
      for (int32_t rank = 0; rank < size; ++rank) {
        for (uint64_t i = 0; i < count; ++i) {
          uint64_t& value = ranks.of(rank)[i];
          if (i >= ranks.begin(rank) && i < ranks.begin(rank + 1)) {
            ASSERT_EQ(value, sum(size, i)) << "rank " << rank << " of " << size << ", " << i;
          } else {
            value = 0;
          }
        }
      }
      for (size_t i = ranks.round_count(); i-- > 0;) ranks.gather(i);
      for (int32_t rank = 0; rank < size; ++rank)
        for (uint64_t i = 0; i < count; ++i)
          ASSERT_EQ(ranks.of(rank)[i], sum(size, i)) << "rank " << rank << " of " << size;
    }
  }
}

TEST(GlooCirculant, Rounds_AnyNumberOfRanks_AsFewAsPossibleAndBothEndsAgree) {
  for (int32_t size = 1; size <= 40; ++size) {
    const Ranks ranks(size, 0);
    size_t logarithm = 0;
    while ((int32_t{1} << logarithm) < size) ++logarithm;
    ASSERT_EQ(ranks.round_count(), logarithm) << size;
    for (int32_t rank = 0; rank < size; ++rank) {
      size_t sent = 0;
      for (size_t i = 0; i < ranks.round_count(); ++i) {
        const CirculantRound& round = ranks.round(rank, i);
        const CirculantRound& next = ranks.round(round.to, i);
        ASSERT_NE(round.to, rank);
        ASSERT_EQ(next.from, rank);
        const auto given = parts_in(round.given), received = parts_in(round.received);
        ASSERT_EQ(given, parts_in(next.received));
        ASSERT_EQ(round.given.size(), next.received.size());  // messages
        sent += given.size();
        // What arrives must not change what is being sent.
        std::set<int32_t> parts(given.begin(), given.end());
        parts.insert(received.begin(), received.end());
        ASSERT_EQ(parts.size(), given.size() + received.size());
        ASSERT_GE(*parts.begin(), 0);
        ASSERT_LT(*parts.rbegin(), size);
      }
      ASSERT_EQ(sent, static_cast<size_t>(size - 1)) << "rank " << rank;
    }
  }
}

TEST(GlooCirculant, FiveRanks_TheRoundsOfThePaper) {
  const auto rounds = circulant_rounds(3, 5);
  ASSERT_EQ(rounds.size(), 3U);
  EXPECT_EQ(rounds[0].to, 1);  // three further
  EXPECT_EQ(rounds[0].from, 0);
  EXPECT_EQ(parts_in(rounds[0].given), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(parts_in(rounds[0].received), (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(rounds[1].to, 0);  // two
  EXPECT_EQ(parts_in(rounds[1].given), (std::vector<int32_t>{0}));
  EXPECT_EQ(parts_in(rounds[1].received), (std::vector<int32_t>{3}));
  EXPECT_EQ(rounds[2].to, 4);  // one
  EXPECT_EQ(parts_in(rounds[2].given), (std::vector<int32_t>{4}));
  EXPECT_EQ(parts_in(rounds[2].received), (std::vector<int32_t>{3}));
}

}  // namespace
}  // namespace db::gloo_cpu
