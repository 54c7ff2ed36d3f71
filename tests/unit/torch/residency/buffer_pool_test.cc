#include "residency/buffer_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/comm/ranks.h"
#include "residency/peer_memory.h"

namespace coupler::residency {
namespace {

TEST(BufferPool, GivenBack_TakenAgain) {
  BufferPool pool;
  void* first = nullptr;
  {
    const auto buffer = pool.take(1000);
    first = buffer.data();
    EXPECT_EQ(buffer.bytes(), 1000u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  }
  EXPECT_EQ(pool.take(1000).data(), first);
  EXPECT_EQ(pool.take(900).data(), first) << "a slightly larger buffer is reused";
  EXPECT_EQ(pool.peak_bytes(), 1000u);
}

TEST(BufferPool, MuchTooLarge_NotUsed) {
  BufferPool pool;
  pool.take(1000);
  EXPECT_EQ(pool.take(100).bytes(), 100u);
  EXPECT_EQ(pool.peak_bytes(), 1000u);
}

TEST(BufferPool, SmallestThatFits_Chosen) {
  BufferPool pool;
  { const auto large = pool.take(1200), small = pool.take(1000); }
  const auto buffer = pool.take(1000);
  EXPECT_EQ(buffer.bytes(), 1000u);
}

TEST(BufferPool, PeakBytes_WhatWasOutTogether) {
  BufferPool pool;
  EXPECT_EQ(pool.peak_bytes(), 0u);
  {
    const auto a = pool.take(100), b = pool.take(200);
    const auto c = pool.take(300);
  }
  pool.take(500);
  EXPECT_EQ(pool.peak_bytes(), 600u);
}

TEST(BufferPool, Moved_GivenBackOnce) {
  BufferPool pool;
  BufferPool::Buffer kept;
  EXPECT_FALSE(kept);
  {
    auto buffer = pool.take(100);
    kept = std::move(buffer);
  }
  EXPECT_TRUE(kept);
  const auto other = pool.take(100);
  EXPECT_NE(kept.data(), other.data());
  EXPECT_EQ(pool.peak_bytes(), 200u);
}

TEST(BufferPool, NoBytes_IsABuffer) {
  BufferPool pool;
  const auto nothing = pool.take(0);
  EXPECT_TRUE(nothing);
  EXPECT_EQ(pool.peak_bytes(), 0u);
}

// Memory that peers reach is only for what they read.
TEST(BufferPool, MemoryToSend_IsOfAKindOfItsOwn) {
  testing::expect_no_error(testing::run_ranks(1, [](comm::Communicator& of_rank) {
    BufferPool pool;
    pool.use_memory_of({&of_rank, [](comm::Communicator*) {}});
    const void *sent = nullptr, *other = nullptr;
    {
      const auto first = pool.take_to_send(kLeastPeerBytes), second = pool.take(kLeastPeerBytes);
      sent = first.data();
      other = second.data();
    }
    {
      const auto second = pool.take(kLeastPeerBytes), first = pool.take_to_send(kLeastPeerBytes);
      EXPECT_EQ(first.data(), sent);
      EXPECT_EQ(second.data(), other);
    }
    EXPECT_EQ(pool.take(kLeastPeerBytes).data(), other) << "the other one was freed first";
    EXPECT_TRUE(pool.take_to_send(2 << 20)) << "the double has less";
  }));
}

TEST(BufferPool, MemoryToSend_WithoutAnyOfPeers_IsAsAnyOther) {
  const auto others = comm::Communicator::made_up("others", 2);
  BufferPool pool;
  pool.use_memory_of(others);
  const void* sent = nullptr;
  {
    const auto buffer = pool.take_to_send(kLeastPeerBytes);
    sent = buffer.data();
  }
  EXPECT_EQ(pool.take(kLeastPeerBytes).data(), sent);
}

// Each thread fills its buffers with its own number and checks that the number stays.
TEST(BufferPool, SeveralThreads_NoMemoryTwice) {
  constexpr int kThreads = 4, kRounds = 2000, kHeld = 3;
  BufferPool pool;
  std::vector<int> spoiled(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      std::vector<std::pair<BufferPool::Buffer, char>> held;
      for (int round = 0; round < kRounds; ++round) {
        auto buffer = pool.take(64 + random() % 1024);
        const char mark = static_cast<char>(t * 64 + round % 64);
        std::memset(buffer.data(), mark, buffer.bytes());
        held.emplace_back(std::move(buffer), mark);
        if (held.size() <= kHeld) continue;
        const auto& [oldest, expected] = held.front();
        const char* const bytes = static_cast<const char*>(oldest.data());
        for (size_t i = 0; i < oldest.bytes(); ++i) spoiled[t] += bytes[i] != expected;
        held.erase(held.begin());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : spoiled) EXPECT_EQ(count, 0);
  EXPECT_LE(pool.peak_bytes(), size_t{kThreads} * (kHeld + 1) * (64 + 1024) * 5 / 4);
  EXPECT_GT(pool.peak_bytes(), 0u);
}

}  // namespace
}  // namespace coupler::residency
