#include "residency/disk_source.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "working_folder.h"

namespace coupler::residency {
namespace {

constexpr size_t kBytes = 2 * BlockFile::kAlignment;

BufferPool::Buffer filled(BufferPool& pool, char value) {
  BufferPool::Buffer memory = pool.take(kBytes);
  std::memset(memory.data(), value, kBytes);
  return memory;
}

bool holds(const BufferPool::Buffer& memory, char value) {
  const char* const begin = static_cast<const char*>(memory.data());
  return std::all_of(begin, begin + kBytes, [&](char byte) { return byte == value; });
}

TEST(DiskSource, BeginsWithZeros) {
  const WorkingFolder folder;
  BufferPool pool{PoolMemory::kPages};
  DiskSource source(folder.path(), 1);
  source.add(kBytes);
  const BufferPool::Buffer memory = filled(pool, 'x');
  source.fill(0, memory.data());
  EXPECT_TRUE(holds(memory, '\0'));
}

// Compared with a list in memory: units are written again and again, and read at once, before or
// after the thread has written them.
TEST(DiskSource, GivesTheLatestOfEachUnit) {
  constexpr size_t kUnits = 5;
  for (const size_t behind : {size_t{1}, size_t{3}}) {
    const WorkingFolder folder;
    BufferPool pool{PoolMemory::kPages};
    DiskSource source(folder.path(), behind);
    std::vector<char> latest(kUnits, '\0');
    for (size_t unit = 0; unit < kUnits; ++unit) source.add(kBytes);
    std::mt19937 random(1);
    for (int i = 0; i < 500; ++i) {
      const size_t unit = random() % kUnits;
      if (random() % 2 == 0) {
        latest[unit] = static_cast<char>(random() % 128);
        source.write_back(unit, filled(pool, latest[unit]));
      }
      const BufferPool::Buffer memory = pool.take(kBytes);
      source.fill(unit, memory.data());
      ASSERT_TRUE(holds(memory, latest[unit])) << "unit " << unit << " in round " << i;
    }
    const BufferPool::Buffer stored = filled(pool, 's');
    source.store(2, stored.data());
    const BufferPool::Buffer memory = pool.take(kBytes);
    source.fill(2, memory.data());
    EXPECT_TRUE(holds(memory, 's'));
    // At most this many blocks are queued, being written, or just read.
    EXPECT_LE(pool.peak_bytes(), (behind + 3) * kBytes);
  }
}

}  // namespace
}  // namespace coupler::residency
