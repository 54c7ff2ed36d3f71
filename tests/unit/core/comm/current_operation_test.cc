// CurrentOperation: readers get the operation of the version that they have seen, or none.
#include "comm/current_operation.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace coupler::comm {
namespace {

// The watchdog takes the time at which it first saw a version for the start of its operation. If it
// got a later operation, that one would seem to be stuck since then.
TEST(CurrentOperation, ReadByAnotherThread_IsTheVersionsOwn) {
  CurrentOperation current;
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    for (uint64_t i = 0; !stop; ++i) {
      current.enter({.sequence = i,
                     .fingerprint = {.what = 3 * i, .size = 0, .shown = 5 * i},
                     .peer = static_cast<int>(i % 1000)});
      current.leave();
    }
  });
  int64_t found = 0, gone = 0, wrong = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while ((found < 10'000 || gone < 100) && std::chrono::steady_clock::now() < deadline) {
    const uint64_t version = current.version();
    const auto operation = current.of(version);
    if (!operation) {
      gone += CurrentOperation::is_inside(version) ? 1 : 0;
      continue;
    }
    ++found;
    const uint64_t sequence = (version - 1) / 2;
    wrong += operation->sequence == sequence && operation->fingerprint.what == 3 * sequence &&
                     operation->fingerprint.shown == 5 * sequence &&
                     operation->peer == static_cast<int>(sequence % 1000)
                 ? 0
                 : 1;
  }
  stop = true;
  thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(found, 10'000);
  EXPECT_GE(gone, 100) << "operations that left between the two calls";
}

TEST(CurrentOperation, OfAnotherVersion_IsNone) {
  CurrentOperation current;
  EXPECT_FALSE(current.of(current.version()));
  current.enter({.sequence = 1, .fingerprint = {}});
  const uint64_t first = current.version();
  EXPECT_EQ(current.of(first)->sequence, 1u);
  current.leave();
  EXPECT_FALSE(current.of(first));
  EXPECT_FALSE(current.of(current.version()));
  current.enter({.sequence = 2, .fingerprint = {}});
  EXPECT_FALSE(current.of(first));
  EXPECT_EQ(current.of(current.version())->sequence, 2u);
}

}  // namespace
}  // namespace coupler::comm
