// How ranks wait for each other in a collective, and what ends a wait. Threads are the ranks.
#include "shm/synchronizer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/op.h"
#include "shm/peers.h"
#include "shm/segment.h"

namespace db::shm {
namespace {

// Far below the 50 ms after which a rank that nobody wakes looks by itself, and far above what a
// busy machine takes on average to wake one.
constexpr int64_t kPromptNs = 25'000'000;
constexpr int64_t kNeverNs = 100'000'000'000;  // longer than any wait here
constexpr Patience kSleepsAtOnce{.ns = 0, .yields = false};

Op all_reduce_of(uint64_t count) {
  Op op;
  op.kind = DB_ALL_REDUCE;
  op.dtype = DB_F32;
  op.reduce = DB_SUM;
  op.count = count;
  op.blocking = true;
  op.timeout_ns = kNeverNs;
  op.deadline_ns = deadline_after(kNeverNs);
  return op;
}

std::unique_ptr<Segment> make_segment(int32_t ranks) {
  Failure failure;
  Descriptor file;
  std::unique_ptr<Segment> segment = Segment::create(Layout::of(ranks, 4096), &file, &failure);
  if (segment == nullptr) throw std::runtime_error(failure.message);
  return segment;
}

// The ranks of one communicator.
class Crew {
 public:
  Crew(int32_t size, const Patience& patience) : segment_(make_segment(size)) {
    for (int32_t rank = 0; rank < size; ++rank)
      members_.push_back(
          std::make_unique<Member>(segment_.get(), rank, lifelines_for(rank, size), patience));
  }

  Peers& peers(int32_t rank) { return member(rank).peers; }
  Synchronizer& synchronizer(int32_t rank) { return member(rank).synchronizer; }

  // What body returns on a thread of each rank.
  std::vector<Failure> run(const std::function<Failure(int32_t)>& body) const {
    std::vector<Failure> results(members_.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < members_.size(); ++i)
      threads.emplace_back([&, i] { results[i] = body(static_cast<int32_t>(i)); });
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  // A rank's part in one collective.
  Failure meet(int32_t rank, const Op& op) {
    Synchronizer& own = synchronizer(rank);
    own.begin(op);
    own.enter();
    return own.await_entries();
  }

  // All ranks but `last` begin a collective. Once they sleep, `last` acts. Returns how long the
  // slowest of the others then slept on.
  int64_t ns_to_wake(int32_t last, const std::function<Failure()>& act,
                     std::vector<Failure>* results) {
    int64_t acted = 0;
    std::vector<int64_t> returned(members_.size(), 0);
    *results = run([&](int32_t rank) {
      if (rank == last) {
        await_sleepers();
        acted = now_ns();
        return act();
      }
      Failure failure = meet(rank, all_reduce_of(1));
      returned[static_cast<size_t>(rank)] = now_ns();
      return failure;
    });
    return *std::max_element(returned.begin(), returned.end()) - acted;
  }

 private:
  struct Member {
    Member(Segment* segment, int32_t rank, std::vector<Descriptor> lifelines,
           const Patience& patience)
        : peers(segment, rank, std::move(lifelines), Descriptor()),
          synchronizer(segment, &peers, rank, patience) {}

    Peers peers;
    Synchronizer synchronizer;
  };

  Member& member(int32_t rank) { return *members_[static_cast<size_t>(rank)]; }

  // All are this process.
  std::vector<Descriptor> lifelines_for(int32_t rank, int32_t size) const {
    std::vector<Descriptor> lifelines(static_cast<size_t>(size));
    for (int32_t peer = 0; peer < size; ++peer)
      if (peer != rank)
        lifelines[static_cast<size_t>(peer)] = Descriptor(dup(lifeline_.shown.get()));
    return lifelines;
  }

  void await_sleepers() const {
    const int64_t until = deadline_after(kNeverNs);
    while (segment_->head().sleepers.load() + 1 < members_.size() && now_ns() < until)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

  const Lifeline lifeline_ = open_lifeline();
  const std::unique_ptr<Segment> segment_;
  std::vector<std::unique_ptr<Member>> members_;
};

TEST(Synchronizer, MoreRanksThanCores_NoneStallsOrRunsAhead) {
  constexpr uint32_t kCollectives = 500;
  constexpr int32_t kRanks = 8;
  Crew crew(kRanks, {.ns = 100'000, .yields = true});
  // By rank: the collective that it has entered, and the one whose step it has published.
  std::array<std::atomic<uint32_t>, kRanks> entered{}, published{};
  const auto all_are = [](const auto& words, uint32_t wanted) {
    return std::all_of(words.begin(), words.end(), [wanted](const std::atomic<uint32_t>& word) {
      return word.load(std::memory_order_relaxed) == wanted;
    });
  };
  const int64_t begin = now_ns();
  const std::vector<Failure> results = crew.run([&](int32_t rank) -> Failure {
    Synchronizer& own = crew.synchronizer(rank);
    const Op op = all_reduce_of(1);
    for (uint32_t i = 1; i <= kCollectives; ++i) {
      entered[static_cast<size_t>(rank)].store(i, std::memory_order_relaxed);
      if (Failure failure = crew.meet(rank, op); !failure.ok()) return failure;
      if (!all_are(entered, i)) return Failure::make(DB_ERR_INTERNAL, "a rank has not entered");
      published[static_cast<size_t>(rank)].store(i, std::memory_order_relaxed);
      if (Failure failure = own.await(own.publish()); !failure.ok()) return failure;
      if (!all_are(published, i)) return Failure::make(DB_ERR_INTERNAL, "a rank has not published");
    }
    return {};
  });
  EXPECT_LT(now_ns() - begin, 2 * kCollectives * kPromptNs);
  for (size_t rank = 0; rank < results.size(); ++rank)
    EXPECT_TRUE(results[rank].ok()) << "rank " << rank << ": " << results[rank].message;
}

TEST(Synchronizer, LastRankToCome_WakesAllSleepers) {
  constexpr int32_t kRounds = 100, kRanks = 4;
  Crew crew(kRanks, kSleepsAtOnce);
  int64_t total = 0;
  for (int32_t round = 0; round < kRounds; ++round) {
    const int32_t last = round % kRanks;
    std::vector<Failure> results;
    total += crew.ns_to_wake(
        last, [&] { return crew.meet(last, all_reduce_of(1)); }, &results);
    for (const Failure& result : results) ASSERT_TRUE(result.ok()) << result.message;
  }
  EXPECT_LT(total, kRounds * kPromptNs);
}

TEST(Synchronizer, RankThatLeaves_EndsTheWaitsForItAtOnce) {
  constexpr int32_t kRounds = 20, kRanks = 4, kLast = kRanks - 1;
  int64_t total = 0;
  for (int32_t round = 0; round < kRounds; ++round) {
    Crew crew(kRanks, kSleepsAtOnce);
    const auto leave = [&]() -> Failure {
      if (round % 2 == 0)
        crew.peers(kLast).leave();
      else
        crew.synchronizer(kLast).abort();
      return {};
    };
    std::vector<Failure> results;
    total += crew.ns_to_wake(kLast, leave, &results);
    for (size_t rank = 0; rank < size_t{kLast}; ++rank) {
      const Failure& result = results[rank];
      EXPECT_EQ(result.status, DB_ERR_PEER_LOST) << result.message;
      EXPECT_EQ(result.failed_rank, kLast);
      EXPECT_TRUE(result.dead());
      EXPECT_EQ(result.message.find("rank 3 is gone: it has left the communicator"), 0u)
          << result.message;
    }
  }
  EXPECT_LT(total, kRounds * kPromptNs);
}

TEST(Synchronizer, AbortFromAnotherThread_EndsTheWaitOfItsRankAtOnce) {
  constexpr int32_t kRounds = 20;
  int64_t total = 0;
  for (int32_t round = 0; round < kRounds; ++round) {
    Crew crew(2, kSleepsAtOnce);
    const auto abort_other = [&]() -> Failure {
      crew.synchronizer(0).abort();
      return {};
    };
    std::vector<Failure> results;
    total += crew.ns_to_wake(1, abort_other, &results);
    EXPECT_EQ(results[0].status, DB_ERR_ABORTED) << results[0].message;
    // Whoever comes later learns that the aborted rank has left.
    const Failure late = crew.synchronizer(1).require_all_present();
    EXPECT_EQ(late.status, DB_ERR_PEER_LOST) << late.message;
    EXPECT_EQ(late.failed_rank, 0);
  }
  EXPECT_LT(total, kRounds * kPromptNs);
}

TEST(Synchronizer, RanksThatCalledDifferentThings_AllReportWhoCalledWhat) {
  Crew crew(3, kSleepsAtOnce);
  const std::vector<Failure> results =
      crew.run([&](int32_t rank) { return crew.meet(rank, all_reduce_of(rank == 1 ? 20 : 10)); });
  const std::string ten = " called all_reduce of 10 f32, sum";
  const std::string twenty = " called all_reduce of 20 f32, sum";
  const std::string start = "the ranks disagree on collective operation 1: ";
  EXPECT_EQ(results[0].message, start + "rank 0" + ten + ", rank 1" + twenty);
  EXPECT_EQ(results[1].message, start + "rank 1" + twenty + ", rank 2" + ten);
  EXPECT_EQ(results[2].message, start + "rank 2" + ten + ", rank 1" + twenty);
  const std::array<int32_t, 3> others = {1, 2, 1};
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].status, DB_ERR_MISMATCH);
    EXPECT_EQ(results[rank].failed_rank, others[rank]);
  }
}

TEST(Synchronizer, RanksWithoutACoreOfTheirOwn_DoNotSpinForMessages) {
  Crew spins(2, {.ns = 50'000, .yields = false}), yields(2, {.ns = 50'000, .yields = true});
  EXPECT_EQ(spins.synchronizer(0).spin_ns(all_reduce_of(1)), 50'000);
  EXPECT_EQ(yields.synchronizer(0).spin_ns(all_reduce_of(1)), 0);
}

}  // namespace
}  // namespace db::shm
