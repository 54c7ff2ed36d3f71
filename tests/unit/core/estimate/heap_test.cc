#include "estimate/heap.h"

#include <gtest/gtest.h>

#include <vector>

#include "estimate/replay.h"
#include "sizes.h"

namespace coupler {
namespace {

TEST(HeapModel, FreedNeighbours_AreUsedAgain) {
  HeapModel heap;
  std::vector<uint64_t> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(heap.take(kMiB, HeapUse::kTensor));
  const uint64_t before = heap.resident();
  EXPECT_GE(before, 8 * kMiB);
  for (const uint64_t block : blocks) heap.give_back(block);
  EXPECT_EQ(heap.live(), 0u);
  EXPECT_EQ(heap.resident(), before);  // kept for later allocations
  heap.take(6 * kMiB);
  EXPECT_EQ(heap.resident(), before);
}

TEST(HeapModel, LargeBlocks_AreTheSystemsAgain) {
  HeapModel heap;
  const uint64_t block = heap.take(64 * kMiB);
  EXPECT_GE(heap.resident(), 64 * kMiB);
  heap.give_back(block);
  EXPECT_LT(heap.resident(), kMiB);
}

TEST(HeapModel, Trim_GivesBackWhatIsFreeBetweenBlocks) {
  HeapModel heap;
  const uint64_t first = heap.take(4 * kMiB);
  heap.take(kMiB);
  heap.give_back(first);
  EXPECT_GE(heap.resident(), 5 * kMiB);
  heap.trim();
  EXPECT_LT(heap.resident(), 2 * kMiB);
}

TEST(ProcessHeap, BlocksNeverTouched_CountAsTheyWouldLie) {
  const MemoryEstimate seen = in_own_process([] {
    ProcessHeap heap;
    MemoryEstimate result;
    const uint64_t before = heap.resident();
    std::vector<uint64_t> blocks;
    for (int i = 0; i < 64; ++i) blocks.push_back(heap.take(kMiB, HeapUse::kTensor));
    blocks.push_back(heap.take(256 * kMiB, HeapUse::kTensor));
    result.at_peak[0] = heap.resident() - before;
    heap.give_back(blocks.back());
    result.at_peak[1] = heap.resident() - before;
    return result;
  });
  EXPECT_NEAR(static_cast<double>(seen.at_peak[0]), 320.0 * kMiB, 2.0 * kMiB);
  EXPECT_NEAR(static_cast<double>(seen.at_peak[1]), 64.0 * kMiB, 2.0 * kMiB);
}

TEST(OwnProcess, WhatItsWorkThrew_IsSaid) {
  try {
    in_own_process([]() -> MemoryEstimate { throw std::runtime_error("no such rank"); });
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("no such rank"), std::string::npos);
  }
}

}  // namespace
}  // namespace coupler
