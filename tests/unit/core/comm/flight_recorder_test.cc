// The recorder itself, between two processes and beyond the length of its ring.
#include "comm/flight_recorder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace coupler::comm {
namespace {

Fingerprint reduction(uint64_t count) {
  db_op op{};
  op.kind = DB_ALL_REDUCE;
  op.dtype = DB_F32;
  op.reduce = DB_SUM;
  op.count = count;
  return fingerprint_of(op, 2);
}

// Two views of the same memory.
struct Pair {
  Pair() {
    auto memory = SharedMemory::create(FlightRecorder::bytes(2));
    const std::string offer = memory->offer();
    auto other = SharedMemory::open(offer, FlightRecorder::bytes(2));
    first = std::make_unique<FlightRecorder>(std::move(memory), 0, 2);
    second = std::make_unique<FlightRecorder>(std::move(other), 1, 2);
  }
  std::unique_ptr<FlightRecorder> first, second;
};

TEST(FlightRecorder, SameOperation_NoDisagreement) {
  Pair pair;
  EXPECT_FALSE(pair.first->enter(1, reduction(5), 7));
  EXPECT_FALSE(pair.second->enter(1, reduction(5), 7));
  EXPECT_EQ(pair.first->progress(1).sequence, 1u);
  EXPECT_EQ(describe(pair.first->progress(1).operation), "all_reduce f32 x5 sum");
}

TEST(FlightRecorder, OtherOperation_TheLaterRankSeesTheEarlierOnes) {
  Pair pair;
  EXPECT_FALSE(pair.first->enter(1, reduction(5), 7));
  const auto other = pair.second->enter(1, reduction(6), 8);
  ASSERT_TRUE(other);
  EXPECT_EQ(other->rank, 0);
  EXPECT_EQ(other->theirs.shown, 5u);
}

TEST(FlightRecorder, DifferenceBeyondTheRing_IsSeenByTheChain) {
  Pair pair;
  uint64_t chain = 0, other_chain = 0;
  // The first rank gets further ahead than the ring is long, so operation 3 has left the ring.
  for (uint64_t i = 1; i <= 600; ++i) {
    chain = chain_hash(chain, reduction(i));
    EXPECT_FALSE(pair.first->enter(i, reduction(i), chain));
  }
  std::optional<Disagreement> seen;
  for (uint64_t i = 1; i <= 600 && !seen; ++i) {
    const Fingerprint operation = reduction(i == 3 ? 99 : i);
    other_chain = chain_hash(other_chain, operation);
    seen = pair.second->enter(i, operation, other_chain);
  }
  ASSERT_TRUE(seen);
  EXPECT_TRUE(seen->earlier);
}

TEST(FlightRecorder, SharedError_FirstOneStays) {
  Pair pair;
  EXPECT_FALSE(pair.first->shared_error());
  EXPECT_TRUE(pair.first->set_shared_error({3, 0, 1, "first"}));
  EXPECT_FALSE(pair.second->set_shared_error({4, 1, 0, "second"}));
  ASSERT_TRUE(pair.second->shared_error());
  EXPECT_EQ(pair.second->shared_error()->text, "first");
  EXPECT_EQ(pair.second->shared_error()->failed_rank, 1);
}

TEST(FlightRecorder, Message_OtherSizeIsSeen_OtherTagIsNot) {
  Pair pair;
  db_op op{};
  op.kind = DB_SEND;
  op.dtype = DB_U8;
  op.count = 5;
  op.tag = 2;
  EXPECT_FALSE(pair.first->enter_pair(1, 1, fingerprint_of(op, 2)));
  op.kind = DB_RECV;
  EXPECT_FALSE(pair.second->enter_pair(0, 1, fingerprint_of(op, 2)));
  op.count = 4;
  EXPECT_TRUE(pair.second->enter_pair(0, 1, fingerprint_of(op, 2)));
  op.tag = 3;
  EXPECT_FALSE(pair.second->enter_pair(0, 1, fingerprint_of(op, 2)));
}

TEST(SharedMemory, AnotherProcess_OpensItByTheOffer) {
  auto memory = SharedMemory::create(FlightRecorder::bytes(2));
  ASSERT_NE(memory, nullptr);
  const std::string offer = memory->offer();
  FlightRecorder recorder(std::move(memory), 0, 2);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto mine = SharedMemory::open(offer, FlightRecorder::bytes(2));
    if (!mine) _exit(1);
    FlightRecorder(std::move(mine), 1, 2).enter(1, reduction(5), 7);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(recorder.progress(1).sequence, 1u);
  EXPECT_EQ(recorder.process_id(1), child);
}

TEST(SharedMemory, WrongOffer_IsRefused) {
  auto memory = SharedMemory::create(FlightRecorder::bytes(2));
  ASSERT_NE(memory, nullptr);
  std::string offer = memory->offer();
  EXPECT_EQ(SharedMemory::open("none", FlightRecorder::bytes(2)), nullptr);
  EXPECT_EQ(SharedMemory::open(offer, FlightRecorder::bytes(3)), nullptr);
  offer.back() = offer.back() == '0' ? '1' : '0';
  EXPECT_EQ(SharedMemory::open(offer, FlightRecorder::bytes(2)), nullptr);
  EXPECT_EQ(SharedMemory::open("elsewhere" + memory->offer(), FlightRecorder::bytes(2)), nullptr);
}

}  // namespace
}  // namespace coupler::comm
