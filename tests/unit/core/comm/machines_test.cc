// Which ranks share a machine, from what their launchers say.
#include "comm/machines.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace coupler::comm {
namespace {

using Machines = std::vector<std::vector<int>>;

std::string refusal(const std::vector<RankPlace>& places, int rank) {
  try {
    machines_of(places);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_EQ(error.detail().rank, rank);
    return error.what();
  }
  return "no error";
}

TEST(Machines, RanksInBlocks_AreTogether) {
  EXPECT_EQ(machines_of({{"a", 0, 2}, {"a", 1, 2}, {"b", 0, 1}}), (Machines{{0, 1}, {2}}));
}

TEST(Machines, RanksDealtOutInTurn_AreTogether) {
  EXPECT_EQ(machines_of({{"a", 0, 2}, {"b", 0, 2}, {"a", 1, 2}, {"b", 1, 2}}),
            (Machines{{0, 2}, {1, 3}}));
}

TEST(Machines, SeveralLaunchersOnOneComputer_AreSeveral) {
  EXPECT_EQ(machines_of({{"a", 0, 2}, {"a", 1, 2}, {"a", 0, 2}, {"a", 1, 2}}),
            (Machines{{0, 1}, {2, 3}}));
  EXPECT_EQ(machines_of({{"a", 0, 1}, {"a", 0, 2}, {"a", 1, 2}}), (Machines{{0}, {1, 2}}));
}

TEST(Machines, LocalRanksInAnotherOrder_AreKept) {
  EXPECT_EQ(machines_of({{"a", 1, 2}, {"a", 0, 2}}), (Machines{{1, 0}}));
}

TEST(Machines, RanksThatDifferInLocalSize_AreNamed) {
  EXPECT_NE(refusal({{"host/1", 0, 2}, {"host/1", 1, 3}}, 1)
                .find("the ranks of the machine host differ in its number of ranks: 2 on rank 0, 3 "
                      "on rank 1"),
            std::string::npos);
}

TEST(Machines, AbsentRank_IsNamed) {
  EXPECT_NE(refusal({{"host/1", 0, 2}, {"other/2", 0, 1}}, 0)
                .find("none of the job's ranks has local rank 1 there"),
            std::string::npos);
  EXPECT_NE(refusal({{"host/1", 3, 2}}, 0).find("rank 0 has local rank 3 of 2"), std::string::npos);
}

}  // namespace
}  // namespace coupler::comm
