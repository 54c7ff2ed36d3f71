// Where the parts of a segment are, and on which NUMA nodes they should be.
#include "shm/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <set>
#include <vector>

#include "shm/placement.h"

namespace db::shm {
namespace {

TEST(Layout, EveryNumberOfRanks_PartsFollowEachOtherOnPages) {
  for (const int32_t ranks : {2, 3, 8, 9, 64, 65, 1000}) {
    const Layout layout = Layout::of(ranks, 0);
    const auto all = static_cast<uint64_t>(ranks);
    EXPECT_GE(layout.slots, Segment::kControls + all * sizeof(Control));
    EXPECT_EQ(layout.staging, layout.slots + all * layout.slot_stride);
    EXPECT_EQ(layout.rings, layout.staging + all * layout.staging_stride);
    EXPECT_EQ(layout.total, layout.rings + all * all * layout.ring_stride);
    for (const uint64_t offset : {layout.slots, layout.slot_stride, layout.staging,
                                  layout.staging_stride, layout.rings, layout.ring_stride})
      EXPECT_EQ(offset % 4096, 0u) << ranks;
    EXPECT_GE(layout.slot_bytes, all * sizeof(uint64_t)) << "all_to_all_v shows its counts";
    EXPECT_GE(layout.chunk_bytes / all / 64, 1u) << "each rank has a part of a chunk";
    EXPECT_EQ(layout.ring_bytes & (layout.ring_bytes - 1), 0u);
  }
}

TEST(Layout, MoreRanks_LargerChunksAndSmallerSlots) {
  EXPECT_EQ(tuning_of(2).slot_bytes, 64u << 10);
  EXPECT_EQ(tuning_of(3).slot_bytes, 32u << 10);
  EXPECT_EQ(tuning_of(64).most_ranks, 64);
  EXPECT_EQ(tuning_of(65).most_ranks, INT32_MAX);
  EXPECT_EQ(Layout::of(2, 8192).chunk_bytes, 8192u);
}

TEST(Segment, Created_HasASealedSizeAndNoName) {
  Failure failure;
  Descriptor file;
  const Layout layout = Layout::of(2, 4096);
  const std::unique_ptr<Segment> first = Segment::create(layout, &file, &failure);
  ASSERT_NE(first, nullptr) << failure.message;
  EXPECT_NE(ftruncate(file.get(), 4096), 0) << "another rank could take the memory away";
  const std::unique_ptr<Segment> second = Segment::map(layout, file, &failure);
  ASSERT_NE(second, nullptr) << failure.message;
  first->control(1).step.store(7);
  EXPECT_EQ(second->control(1).step.load(), 7u);
  EXPECT_EQ(Segment::map(Layout::of(3, 4096), file, &failure), nullptr);
  EXPECT_EQ(failure.status, DB_ERR_MISMATCH);
  EXPECT_NE(failure.message.find("memory of another size"), std::string::npos) << failure.message;
}

TEST(Segment, MemoryThatCanShrink_IsRefused) {
  const Layout layout = Layout::of(2, 4096);
  const Descriptor file(memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(layout.total)), 0);
  Failure failure;
  EXPECT_EQ(Segment::map(layout, file, &failure), nullptr);
  EXPECT_EQ(failure.status, DB_ERR_MISMATCH);
}

TEST(Placement, OneNode_NothingIsPlaced) {
  EXPECT_TRUE(plan_placement(Layout::of(4, 0), {0, 0, 0, 0}).empty());
  EXPECT_TRUE(plan_placement(Layout::of(2, 0), {1, 1}).empty());
}

TEST(Placement, TwoNodes_OwnMemoryIsNearAndRingsAreWhereTheyAreRead) {
  const Layout layout = Layout::of(3, 0);
  const std::vector<int32_t> nodes = {0, 0, 1};
  const std::vector<PlacedRange> ranges = plan_placement(layout, nodes);
  // The node of an address, by the plan.
  const auto node_at = [&](uint64_t offset) {
    for (const PlacedRange& range : ranges)
      if (offset >= range.offset && offset < range.offset + range.bytes) return range.node;
    return -1;
  };
  EXPECT_EQ(node_at(0), -1) << "the control blocks";
  for (uint64_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(node_at(layout.slots + rank * layout.slot_stride), nodes[rank]);
    EXPECT_EQ(node_at(layout.slots + (rank + 1) * layout.slot_stride - 1), nodes[rank]);
    EXPECT_EQ(node_at(layout.staging + rank * layout.staging_stride), nodes[rank]);
    for (uint64_t to = 0; to < 3; ++to)
      EXPECT_EQ(node_at(layout.rings + (rank * 3 + to) * layout.ring_stride), nodes[to]);
  }
  // Two ranks of one node are one call.
  EXPECT_EQ(ranges.front(), (PlacedRange{layout.slots, 2 * layout.slot_stride, 0}));
  for (const PlacedRange& range : ranges) EXPECT_EQ(range.offset % 4096, 0u);
}

TEST(Placement, NodeOfThisMachine_IsAccepted) {
  Failure failure;
  Descriptor file;
  const std::unique_ptr<Segment> segment = Segment::create(Layout::of(2, 4096), &file, &failure);
  ASSERT_NE(segment, nullptr) << failure.message;
  const Layout& layout = segment->layout();
  const std::string refused =
      place(segment->base(), {{layout.slots, layout.slot_stride, current_node()}});
  // A container may forbid mbind, which is said.
  EXPECT_TRUE(refused.empty() || refused.find("mbind to node") == 0) << refused;
  EXPECT_NE(place(segment->base(), {{layout.slots, layout.slot_stride, 1000}}), "");
}

}  // namespace
}  // namespace db::shm
