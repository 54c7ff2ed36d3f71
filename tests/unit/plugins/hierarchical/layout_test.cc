// Which ranks are on which machine, what contradicts itself, and how data is divided among lanes.
#include "hierarchical/layout.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace db::hierarchical {
namespace {

Announcement said(int32_t first, int32_t local_rank, int32_t local_size) {
  return {first, local_rank, local_size, 0};
}

Layout layout_of(const std::vector<Announcement>& all, int32_t rank) {
  Layout layout;
  const Failure failure = Layout::make(all, rank, &layout);
  EXPECT_TRUE(failure.ok()) << failure.message;
  return layout;
}

void expect_refused(const std::vector<Announcement>& all, int32_t rank, const std::string& part) {
  Layout layout;
  const Failure failure = Layout::make(all, 0, &layout);
  EXPECT_EQ(failure.status, DB_ERR_MISMATCH);
  EXPECT_EQ(failure.failed_rank, rank);
  EXPECT_NE(failure.message.find(part), std::string::npos) << failure.message;
}

TEST(Layout, UnequalMachines_HaveTheLanesOfTheSmallest) {
  const Layout layout =
      layout_of({said(0, 0, 3), said(0, 1, 3), said(0, 2, 3), said(3, 0, 2), said(3, 1, 2)}, 2);
  EXPECT_EQ(layout.machines, (std::vector<std::vector<int32_t>>{{0, 1, 2}, {3, 4}}));
  EXPECT_EQ(layout.lanes, 2);
  EXPECT_EQ(layout.machine(), 0);
  EXPECT_EQ(layout.index(), 2);
  EXPECT_EQ(layout.lane(1), (std::vector<int32_t>{1, 4}));
  EXPECT_TRUE(layout.shares_machine(0));
  EXPECT_FALSE(layout.shares_machine(3));
  EXPECT_FALSE(layout.is_one_machine());
  EXPECT_FALSE(layout.is_one_rank_each());
}

TEST(Layout, RanksDealtOutInTurn_AreFoundOnTheirMachines) {
  const Layout layout = layout_of({said(0, 0, 2), said(1, 0, 2), said(0, 1, 2), said(1, 1, 2)}, 3);
  EXPECT_EQ(layout.machines, (std::vector<std::vector<int32_t>>{{0, 2}, {1, 3}}));
  EXPECT_EQ(layout.machine(), 1);
  EXPECT_EQ(layout.index(), 1);
}

TEST(Layout, OneMachine_IsOneOnlyIfTheOrderIsTheSame) {
  EXPECT_TRUE(layout_of({said(0, 0, 2), said(0, 1, 2)}, 0).is_one_machine());
  EXPECT_FALSE(layout_of({said(1, 1, 2), said(1, 0, 2)}, 0).is_one_machine());
  EXPECT_TRUE(layout_of({said(0, 0, 1), said(1, 0, 1)}, 0).is_one_rank_each());
}

TEST(Layout, ContradictingRanks_AreRefusedByName) {
  expect_refused({said(0, 0, 2), said(0, 1, 3)}, 1,
                 "rank 1 is 1 of 3 in its base \"local\", but other ranks of its machine say that "
                 "it has 2 ranks");
  expect_refused({said(0, 0, 2), said(0, 0, 2)}, 1, "and so is rank 0");
  expect_refused({said(0, 2, 2), said(0, 0, 2)}, 0, "which that base cannot have");
  expect_refused({said(0, 0, 2), said(1, 0, 1)}, 0,
                 "this communicator has no rank that is 1 there");
}

TEST(Clients, AnyNumberOfLanes_HaveEachLocalIndexOnce) {
  for (int32_t size = 1; size <= 9; ++size) {
    for (int32_t lanes = 1; lanes <= size; ++lanes) {
      int32_t next = 0;
      for (int32_t j = 0; j < lanes; ++j) {
        const auto [begin, end] = clients(size, lanes, j);
        EXPECT_EQ(begin, next);
        EXPECT_LT(begin, end);
        next = end;
      }
      EXPECT_EQ(next, size);
    }
  }
}

TEST(Parts, AnyCount_IsDividedWithoutRest) {
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{6}, uint64_t{1000003}}) {
    EXPECT_EQ(part_begin(count, 3, 0), 0u);
    EXPECT_EQ(part_begin(count, 3, 3), count);
    for (int32_t j = 0; j < 3; ++j) {
      EXPECT_LE(part_begin(count, 3, j + 1) - part_begin(count, 3, j), count / 3 + 1);
    }
  }
}

}  // namespace
}  // namespace db::hierarchical
