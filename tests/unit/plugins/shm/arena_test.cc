// What an arena allocates and takes back, and that peers reach it by its place.
#include "shm/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "shm/segment.h"

namespace db::shm {
namespace {

constexpr uint64_t kArena = 1 << 20;

// The arenas of two ranks, as two processes would have them.
class ArenaTest : public ::testing::Test {
 protected:
  ArenaTest() {
    Failure failure;
    Descriptor file;
    const Layout layout = Layout::of(2, 4096, kArena);
    segment_ = Segment::create(layout, &file, &failure);
    EXPECT_NE(segment_, nullptr) << failure.message;
    watched_ = Descriptor(dup(file.get()));
    second_ = std::make_shared<Arena>(Descriptor(dup(file.get())), layout, 1);
    first_ = std::make_shared<Arena>(std::move(file), layout, 0);
  }

  std::unique_ptr<Arena::Block> take(uint64_t bytes) { return first_->allocate(bytes, &failure_); }
  int64_t file_blocks() const {
    struct stat status {};
    EXPECT_EQ(fstat(watched_.get(), &status), 0);
    return status.st_blocks;
  }

  std::unique_ptr<Segment> segment_;
  std::shared_ptr<Arena> first_, second_;
  Descriptor watched_;
  Failure failure_;
};

TEST_F(ArenaTest, Untouched_NothingIsMappedOrTaken) {
  EXPECT_TRUE(first_->has_room());
  EXPECT_FALSE(first_->is_mapped());
  const std::vector<uint8_t> elsewhere(10);
  EXPECT_EQ(first_->place_of(elsewhere.data(), 10), 0u);
  EXPECT_LE(file_blocks() * 512, static_cast<int64_t>(segment_->layout().total));
}

TEST_F(ArenaTest, Blocks_AreZerosWithPagesOfTheirOwn) {
  const int64_t before = file_blocks();
  const auto one = take(5000), two = take(1);
  ASSERT_TRUE(one && two) << failure_.message;
  EXPECT_EQ(file_blocks() - before, 3 * 4096 / 512) << "taken at once, not when they are written";
  EXPECT_EQ(two->data(), one->data() + 8192);
  EXPECT_EQ(std::count(one->data(), one->data() + 12288, 0), 12288);
}

TEST_F(ArenaTest, Peers_ReachItByItsPlace_AndNotTheOthersAsTheirOwn) {
  const auto block = take(8192);
  ASSERT_NE(block, nullptr) << failure_.message;
  const auto other = second_->allocate(4096, &failure_);
  ASSERT_NE(other, nullptr) << failure_.message;
  const uint64_t place = first_->place_of(block->data() + 100, 8092);
  ASSERT_NE(place, 0u);
  std::memset(block->data(), 5, 8192);
  EXPECT_EQ(*second_->at(place), 5);
  EXPECT_EQ(second_->place_of(second_->at(place), 1), 0u) << "it belongs to the first rank";
  EXPECT_EQ(first_->place_of(block->data(), kArena + 1), 0u) << "it ends before";
  EXPECT_NE(first_->place_of(block->data(), kArena), 0u);
}

TEST_F(ArenaTest, FreedBlocks_ReturnTheirPagesAndBecomeOneRoom) {
  const int64_t before = file_blocks();
  std::vector<std::unique_ptr<Arena::Block>> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(take(kArena / 4));
    ASSERT_NE(blocks.back(), nullptr) << failure_.message;
    std::memset(blocks.back()->data(), 9, kArena / 4);
  }
  const uint8_t* const begin = blocks[0]->data();
  EXPECT_EQ(take(1), nullptr);
  EXPECT_EQ(failure_.status, DB_ERR_NO_MEMORY);
  EXPECT_EQ(failure_.message,
            "the arena of this rank, 1024 KiB, has no room for 1 more bytes in one piece");
  for (const size_t i : {1u, 3u, 2u, 0u}) blocks[i] = nullptr;
  EXPECT_EQ(file_blocks(), before);
  const auto all = take(kArena);
  ASSERT_NE(all, nullptr) << failure_.message;
  EXPECT_EQ(all->data(), begin);
  EXPECT_EQ(std::count(all->data(), all->data() + kArena, 0), static_cast<int64_t>(kArena));
}

TEST_F(ArenaTest, Block_OutlivesItsCommunicator) {
  const auto block = take(4096);
  ASSERT_NE(block, nullptr) << failure_.message;
  segment_ = nullptr;
  first_ = second_ = nullptr;
  std::memset(block->data(), 1, 4096);
  EXPECT_EQ(block->data()[4095], 1);
}

TEST_F(ArenaTest, LayoutWithoutArenas_HasNoRoom) {
  const Layout layout = Layout::of(2, 4096);
  EXPECT_EQ(layout.file_bytes(), layout.total);
  const auto none = std::make_shared<Arena>(Descriptor(dup(watched_.get())), layout, 1);
  EXPECT_FALSE(none->has_room());
  EXPECT_EQ(none->allocate(1, &failure_), nullptr);
  EXPECT_EQ(failure_.status, DB_ERR_NO_MEMORY);
}

TEST(ArenaSize, AllArenas_AreAboutAsLargeAsTheMachinesMemory) {
  const auto machine =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (const int32_t ranks : {2, 3, 64}) {
    const uint64_t each = arena_bytes_for(ranks, 0);
    EXPECT_EQ(each % 4096, 0u);
    EXPECT_LE(each * static_cast<uint64_t>(ranks), machine);
    EXPECT_GT((each + 4096) * static_cast<uint64_t>(ranks), machine);
  }
}

}  // namespace
}  // namespace db::shm
