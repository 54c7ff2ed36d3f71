#include "data/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

namespace coupler::data {
namespace {

constexpr size_t kCounts[] = {1, 2, 5};

TEST(Workers, AnyNumber_DoEachPieceOnceAndGiveThemInOrder) {
  for (const size_t count : kCounts) {
    constexpr uint64_t kPieces = 500;
    std::vector<std::atomic<int>> done(kPieces);
    std::vector<uint64_t> slots(count * 2);
    Workers workers(count, slots.size(), [&](size_t worker, uint64_t ticket) {
      EXPECT_GE(worker, 1u);
      EXPECT_LE(worker, count);
      if (ticket >= kPieces) return false;
      ++done[ticket];
      slots[ticket % slots.size()] = ticket * ticket;
      return true;
    });
    uint64_t ticket = 0;
    for (; workers.await(ticket); ++ticket) {
      ASSERT_EQ(slots[ticket % slots.size()], ticket * ticket);
      workers.release(ticket);
    }
    EXPECT_EQ(ticket, kPieces);
    for (const auto& times : done) EXPECT_EQ(times, 1);
  }
}

TEST(Workers, PiecesAhead_AreNoMoreThanAllowed) {
  std::atomic<uint64_t> begun = 0;
  Workers workers(3, 4, [&](size_t, uint64_t) {
    ++begun;
    return true;
  });
  for (uint64_t ticket = 0; ticket < 50; ++ticket) {
    ASSERT_TRUE(workers.await(ticket));
    ASSERT_LE(begun, ticket + 4);
    workers.release(ticket);
  }
}

TEST(Workers, Exception_ComesOutAtItsPlaceAndEndsTheWork) {
  for (const size_t count : kCounts) {
    Workers workers(count, count, [](size_t, uint64_t ticket) {
      if (ticket >= 7) throw std::runtime_error("piece " + std::to_string(ticket));
      return true;
    });
    for (uint64_t ticket = 0; ticket < 7; ++ticket) {
      ASSERT_TRUE(workers.await(ticket));
      workers.release(ticket);
    }
    try {
      workers.await(7);
      FAIL() << "no exception was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "piece 7");
    }
  }
}

// Destroyed while workers wait for room, while they work, and before they start: without a hang,
// which the test's timeout would catch.
TEST(Workers, BrokenOff_End) {
  for (int round = 0; round < 200; ++round) {
    Workers workers(1 + static_cast<size_t>(round) % 4, 4, [&](size_t, uint64_t) {
      if (round % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
      return true;
    });
    for (uint64_t ticket = 0; ticket < static_cast<uint64_t>(round % 5); ++ticket) {
      ASSERT_TRUE(workers.await(ticket));
      workers.release(ticket);
    }
  }
}

}  // namespace
}  // namespace coupler::data
