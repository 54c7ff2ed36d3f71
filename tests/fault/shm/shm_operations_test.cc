// Every kind of operation of shm compared with a naive reference, on forked ranks. The matrix for
// all backends is in tests/matrix; this covers what is specific to shm: data that fits into an
// entry, into a slot, or takes many chunks; more ranks than cores; messages that go on during other
// operations.
#include <gtest/gtest.h>

#include <vector>

#include "ranks/ranks.h"
#include "ranks/reference.h"

namespace backend_test {
namespace {

db_option number_option(const char* key, int64_t value) {
  db_option option{};
  option.struct_size = sizeof option;
  option.key = key;
  option.type = DB_OPTION_I64;
  option.i64 = value;
  return option;
}

// Chunks as small as possible, so that little data takes many.
const db_option kSmallChunks = number_option("chunk_bytes", 4096);

Job job_in_chunks(int32_t size, bool small_chunks) {
  Job job = job_of(size);
  if (small_chunks) job.options = {&kSmallChunks};
  return job;
}

TEST(ShmOperations, Reductions_AroundEveryThreshold_MatchTheReference) {
  for (const bool small_chunks : {false, true}) {
    for (int32_t size = 1; size <= 4; ++size) {
      expect_ranks(job_in_chunks(size, small_chunks), [&](int32_t rank, Rank& self) {
        // An entry holds 8 floats, a slot of two ranks 16384.
        for (const uint64_t count : {0, 1, 8, 9, 1031, 16384, 16385, 40009})
          check_reductions<float>(self, rank, size, DB_F32, count);
        check_reductions<int32_t>(self, rank, size, DB_I32, 30011);
        check_reductions<uint8_t>(self, rank, size, DB_U8, 100003);
        check_reductions<double>(self, rank, size, DB_F64, 10007);
      });
    }
  }
}

TEST(ShmOperations, Movers_AroundEveryThreshold_MatchTheReference) {
  for (const bool small_chunks : {false, true}) {
    for (int32_t size = 1; size <= 4; ++size) {
      expect_ranks(job_in_chunks(size, small_chunks), [&](int32_t rank, Rank& self) {
        for (const uint64_t count : {1, 32, 33, 4099, 70001})
          check_movers(self, rank, size, count, count % 2 == 0);
      });
    }
  }
}

TEST(ShmOperations, NineRanks_MoreThanCores_MatchTheReference) {
  expect_ranks(job_of(9), [&](int32_t rank, Rank& self) {
    for (const uint64_t count : {1, 7001}) {
      check_reductions<float>(self, rank, 9, DB_F32, count);
      check_movers(self, rank, 9, count, true);
    }
  });
}

TEST(ShmOperations, AllReduce_FloatsThatRound_SameBitsOnEveryRank) {
  for (const uint64_t count : {5, 500, 100003}) {
    expect_ranks(job_of(4),
                 [&](int32_t rank, Rank& self) { check_same_bits(self, rank, 4, count); });
  }
}

// Results that are written past the caches, at an address that no vector register is aligned to.
TEST(ShmOperations, LargeResultsAtOddAddresses_MatchTheReference) {
  constexpr uint64_t kBytes = (5 << 20) + 77;
  expect_ranks(job_of(2), [&](int32_t rank, Rank& self) {
    std::vector<uint8_t> send(kBytes), recv(2 * kBytes + 3, 0);
    for (uint64_t i = 0; i < kBytes; ++i) send[i] = mark(rank, 0, i);
    db_op op{};
    op.kind = DB_ALL_GATHER;
    op.dtype = DB_U8;
    op.send = send.data();
    op.recv = recv.data() + 1;
    op.count = kBytes;
    ASSERT_EQ(self.run(op, true), DB_OK) << self.error.text.data();
    for (uint64_t i = 0; i < 2 * kBytes; ++i)
      ASSERT_EQ(recv[i + 1], mark(static_cast<int32_t>(i / kBytes), 0, i % kBytes)) << i;
    EXPECT_EQ(recv[0], 0);
    EXPECT_EQ(recv[2 * kBytes + 1], 0);
  });
}

db_op message(db_kind kind, int32_t peer, std::vector<float>& data) {
  db_op op{};
  op.struct_size = sizeof op;
  op.kind = kind;
  op.dtype = DB_F32;
  op.memory = DB_MEMORY_HOST;
  op.root_or_peer = peer;
  op.send = kind == DB_SEND ? data.data() : nullptr;
  op.recv = kind == DB_RECV ? data.data() : nullptr;
  op.count = data.size();
  return op;
}

// What rank 0 sends is larger than a ring and is not waited for until the end. It must move while
// both ranks receive and reduce, or they would wait for each other.
TEST(ShmOperations, MessageUnderWay_MovesDuringOtherOperations) {
  expect_ranks(job_of(2), [&](int32_t rank, Rank& self) {
    std::vector<float> out(1 << 20, static_cast<float>(rank + 1)), in(1 << 20, -1);
    Error error;
    db_request* request = nullptr;
    const db_op sends = message(DB_SEND, 1 - rank, out);
    ASSERT_GE(self.functions->submit(self.communicator, &sends, &request, error), 0)
        << error.text.data();
    ASSERT_EQ(self.run(message(DB_RECV, 1 - rank, in), true), DB_OK) << self.error.text.data();
    EXPECT_EQ(in.back(), static_cast<float>(2 - rank));
    float one = 1;
    ASSERT_EQ(self.run(all_reduce(&one, &one, 1), true), DB_OK) << self.error.text.data();
    EXPECT_EQ(one, 2);
    if (request == nullptr) return;
    ASSERT_EQ(self.functions->wait_host(request, -1, error), DB_OK) << error.text.data();
    self.functions->release(request);
  });
  // Rank 0 is in a collective when its message must go on.
  expect_ranks(job_of(2), [&](int32_t rank, Rank& self) {
    std::vector<float> data(1 << 20, rank == 0 ? 7.0f : -1.0f);
    float one = 1;
    Error error;
    db_request* request = nullptr;
    if (rank == 0) {
      const db_op sends = message(DB_SEND, 1, data);
      ASSERT_EQ(self.functions->submit(self.communicator, &sends, &request, error), DB_IN_PROGRESS);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ASSERT_EQ(self.run(message(DB_RECV, 0, data), true), DB_OK) << self.error.text.data();
      EXPECT_EQ(data.back(), 7);
    }
    ASSERT_EQ(self.run(all_reduce(&one, &one, 1), true), DB_OK) << self.error.text.data();
    if (request == nullptr) return;
    ASSERT_EQ(self.functions->wait_host(request, -1, error), DB_OK) << error.text.data();
    self.functions->release(request);
  });
}

TEST(ShmOperations, Split_ParentDestroyedFirst_GroupsWorkAndCanBeSplitAgain) {
  expect_ranks(job_of(4), [&](int32_t rank, Rank& self) {
    db_communicator* half = nullptr;
    Error error;
    ASSERT_EQ(self.functions->split(self.communicator, rank % 2, -rank, &half, error), DB_OK)
        << error.text.data();
    ASSERT_NE(half, nullptr);
    EXPECT_EQ(half->rank, rank < 2 ? 1 : 0);
    self.functions->destroy(self.communicator);
    self.communicator = half;
    std::vector<float> many(100000, static_cast<float>(rank));
    ASSERT_EQ(self.run(all_reduce(many.data(), many.data(), many.size()), false), DB_OK);
    EXPECT_EQ(many.back(), rank % 2 == 0 ? 2 : 4);
    db_communicator* again = nullptr;
    ASSERT_EQ(self.functions->split(half, 0, 0, &again, error), DB_OK) << error.text.data();
    EXPECT_EQ(again->size, 2);
    again->functions->destroy(again);
  });
}

}  // namespace
}  // namespace backend_test
