// How ranks wait for each other. The ranks are threads that share a segment, eight of them, so that
// many machines have fewer cores.
#include "shm/synchronizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/local_socket.h"
#include "common/op.h"
#include "shm/peers.h"
#include "shm/segment.h"

namespace db::shm {
namespace {

constexpr int32_t kCrowd = 8;

Op crowd_barrier(bool blocking = true) {
  Op op;
  op.kind = DB_BARRIER;
  op.blocking = blocking;
  op.timeout_ns = 60'000'000'000;
  op.deadline_ns = now_ns() + op.timeout_ns;
  return op;
}

class CrowdRank {
 public:
  CrowdRank(Segment* segment, int32_t own, const Patience& patience)
      : rank(static_cast<size_t>(own)),
        // Without lifelines, as all live as long as this process.
        peers_(segment, own, std::vector<Descriptor>(kCrowd), Descriptor()),
        synchronizer_(segment, &peers_, own, patience) {}

  // Takes part in a collective of one step. `inside` runs when all ranks have entered it, and all
  // have left `inside` when this returns. Returns what went wrong, or "".
  std::string meet(const std::function<void()>& inside) {
    op_ = crowd_barrier();
    synchronizer_.begin(op_);
    synchronizer_.enter();
    if (const Failure failure = synchronizer_.await_entries(); !failure.ok())
      return failure.message;
    inside();
    return synchronizer_.await(synchronizer_.publish()).message;
  }
  // The others must not wait for it.
  void leave() { synchronizer_.abort(); }

  const size_t rank;

 private:
  Op op_;
  Peers peers_;
  Synchronizer synchronizer_;
};

// Runs `body` for each rank, on a thread of its own. Returns what went wrong first, by rank, or "".
std::string run_crowd(const Patience& patience,
                      const std::function<std::string(CrowdRank& self)>& body) {
  Failure failure;
  Descriptor file;
  const std::unique_ptr<Segment> segment =
      Segment::create(Layout::of(kCrowd, 4096), &file, &failure);
  if (segment == nullptr) return failure.message;
  std::vector<std::string> problems(kCrowd);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < kCrowd; ++rank) {
    threads.emplace_back([&, rank] {
      CrowdRank self(segment.get(), rank, patience);
      problems[self.rank] = body(self);
      if (!problems[self.rank].empty()) self.leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& problem : problems)
    if (!problem.empty()) return problem;
  return "";
}

TEST(Synchronizer, RanksThatYield_MeetInEveryCollective) {
  constexpr int kCollectives = 500;
  std::vector<int> entered(kCrowd);  // the last collective that each rank has entered
  const std::string problem = run_crowd({100'000, true}, [&](CrowdRank& self) -> std::string {
    for (int number = 1; number <= kCollectives; ++number) {
      entered[self.rank] = number;
      bool all_here = false;
      const std::string wrong = self.meet(
          [&] { all_here = std::count(entered.begin(), entered.end(), number) == kCrowd; });
      if (!wrong.empty()) return wrong;
      if (!all_here) return "it passed collective " + std::to_string(number) + " before the others";
    }
    return "";
  });
  EXPECT_EQ(problem, "");
}

// Otherwise they would sleep until a slice of 50 ms is over, in every round. One round in ten has
// to be faster, because on a busy machine any thread may wait for a core.
TEST(Synchronizer, LastToCome_WakesAllThatSleep) {
  constexpr size_t kRounds = 100;
  std::vector<int64_t> taken(kRounds);  // from when the last one comes until all have woken up
  const std::string problem = run_crowd({0, false}, [&](CrowdRank& self) -> std::string {
    for (size_t round = 0; round < kRounds; ++round) {
      const bool is_last = round % kCrowd == self.rank;
      if (is_last) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const int64_t begin = now_ns();
      const std::string wrong = self.meet([] {});
      if (!wrong.empty()) return wrong;
      if (is_last) taken[round] = now_ns() - begin;
    }
    return "";
  });
  ASSERT_EQ(problem, "");
  std::sort(taken.begin(), taken.end());
  EXPECT_LT(taken[kRounds / 10], 25'000'000) << "nanoseconds";
}

TEST(Synchronizer, RanksThatYield_NeverSpin) {
  Failure failure;
  Descriptor file;
  const std::unique_ptr<Segment> segment = Segment::create(Layout::of(2, 4096), &file, &failure);
  ASSERT_NE(segment, nullptr) << failure.message;
  Peers peers(segment.get(), 0, std::vector<Descriptor>(2), Descriptor());
  const Synchronizer spinning(segment.get(), &peers, 0, {50'000, false});
  EXPECT_EQ(spinning.spin_ns(crowd_barrier()), 50'000);
  EXPECT_LT(spinning.spin_ns(crowd_barrier(false)), 50'000) << "the worker thread spins less";
  const Synchronizer yielding(segment.get(), &peers, 0, {50'000, true});
  EXPECT_EQ(yielding.spin_ns(crowd_barrier()), 0);
}

}  // namespace
}  // namespace db::shm
