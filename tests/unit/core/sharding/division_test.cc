// Divisions against a naive reference: the elements of a slice of an array, written out.
#include "sharding/division.h"

#include <gtest/gtest.h>

#include <vector>

namespace coupler::sharding {
namespace {

struct Shape {
  int64_t outer, size, inner, blocks;
  int ranks;
};

// Calls check(shape, rank, the elements that the rank has of the dimension's blocks, in order).
template <class Check>
void for_each_part(const Check& check) {
  for (const Shape& shape :
       {Shape{1, 4, 3, 1, 2}, Shape{4, 6, 1, 1, 2}, Shape{4, 6, 1, 1, 3}, Shape{3, 12, 2, 3, 2},
        Shape{1, 12, 5, 3, 4}, Shape{2, 8, 1, 2, 4}, Shape{1, 1, 7, 1, 1}, Shape{5, 4, 1, 2, 1}}) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      const int64_t block = shape.size / shape.blocks, own = block / shape.ranks;
      std::vector<int64_t> elements;
      for (int64_t o = 0; o < shape.outer; ++o) {
        for (int64_t b = 0; b < shape.blocks; ++b) {
          for (int64_t i = 0; i < own * shape.inner; ++i) {
            elements.push_back((o * shape.size + b * block + rank * own) * shape.inner + i);
          }
        }
      }
      SCOPED_TRACE(::testing::Message()
                   << shape.outer << "x" << shape.size << "x" << shape.inner << " in "
                   << shape.blocks << " blocks, rank " << rank << " of " << shape.ranks);
      check(shape, Division::along(shape.size, shape.inner, shape.blocks, shape.ranks, rank),
            elements);
    }
  }
}

TEST(Division, EveryElement_IsWhereTheSliceHasIt) {
  for_each_part(
      [](const Shape& shape, const Division& division, const std::vector<int64_t>& elements) {
        const int64_t numel = shape.outer * shape.size * shape.inner;
        std::vector<int64_t> part_of(static_cast<size_t>(numel), -1);
        for (size_t i = 0; i < elements.size(); ++i) {
          const auto at = static_cast<int64_t>(i);
          EXPECT_EQ(division.in_tensor(at), elements[i]);
          part_of[static_cast<size_t>(elements[i])] = at;
        }
        int64_t next = numel;
        for (int64_t e = numel - 1; e >= 0; --e) {
          EXPECT_EQ(division.in_part(e), part_of[static_cast<size_t>(e)]);
          if (part_of[static_cast<size_t>(e)] >= 0) next = e;
          if (next == numel) continue;
          EXPECT_EQ(division.next_in_tensor(e), next);
        }
      });
}

TEST(Division, Runs_AreAsLongAsTheElementsAreTogether) {
  for_each_part([](const Shape&, const Division& division, const std::vector<int64_t>& elements) {
    const auto numel = static_cast<int64_t>(elements.size());
    for (int64_t begin = 0; begin <= numel; ++begin) {
      for (int64_t end = begin; end <= numel; ++end) {
        int64_t expected = begin;
        division.each_run(begin, end, [&](int64_t at, int64_t from, int64_t count) {
          EXPECT_EQ(at, expected);
          EXPECT_GT(count, 0);
          for (int64_t i = 0; i < count; ++i)
            EXPECT_EQ(from + i, elements[static_cast<size_t>(at + i)]);
          expected += count;
        });
        EXPECT_EQ(expected, end);
      }
    }
  });
}

TEST(Division, OneRunForEachRank_IsContiguous) {
  EXPECT_TRUE(Division::along(4, 3, 1, 2, 1).is_contiguous(12));
  EXPECT_FALSE(Division::along(4, 1, 1, 2, 1).is_contiguous(12));
  EXPECT_FALSE(Division::along(12, 1, 3, 2, 0).is_contiguous(12));
  EXPECT_TRUE(Division().is_contiguous(12));
}

}  // namespace
}  // namespace coupler::sharding
