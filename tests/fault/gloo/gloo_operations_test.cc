// Every kind of operation of gloo_cpu compared with a naive reference, on forked ranks. The matrix
// for all backends is in tests/matrix; this covers what is specific to gloo_cpu: each of its
// algorithms, empty parts, chunks, and messages in flight between two ranks in both directions.
#include <gtest/gtest.h>

#include <vector>

#include "by_algorithm.h"
#include "ranks/ranks.h"
#include "ranks/reference.h"

namespace backend_test {
namespace {

class GlooOperationsByAlgorithm : public ByAlgorithm {};
INSTANTIATE_TEST_SUITE_P(, GlooOperationsByAlgorithm, ::testing::Values("auto", "halving", "gloo"),
                         algorithm_name);

TEST_P(GlooOperationsByAlgorithm, Reductions_EveryReductionAndSize_MatchTheReference) {
  for (int32_t size = 1; size <= 4; ++size) {
    expect_ranks(job_of(size), [&](int32_t rank, Rank& self) {
      for (const uint64_t count : {0, 1, 2, 13, 4099, 70001}) {
        check_reductions<float>(self, rank, size, DB_F32, count);
        check_reductions<int32_t>(self, rank, size, DB_I32, count);
      }
      check_reductions<double>(self, rank, size, DB_F64, 1031);
      check_reductions<uint8_t>(self, rank, size, DB_U8, 1031);
      check_reductions<int64_t>(self, rank, size, DB_I64, 40009);
    });
  }
}

TEST(GlooOperations, AllReduce_EitherAlgorithmForced_SameResult) {
  for (const char* algorithm : {"exchange", "scatter"}) {
    const db_option option = text_option("algorithm", algorithm);
    const db_option chunk = number_option("chunk_bytes", 4096);
    Job job;
    job.size = 3;
    job.options = {&option, &chunk};
    expect_ranks(job, [&](int32_t rank, Rank& self) {
      for (const uint64_t count : {1, 1000, 30011})
        check_reductions<float>(self, rank, job.size, DB_F32, count);
    });
  }
}

// Numbers of ranks that are not powers of two, parts around the buffer's end, and empty ones.
TEST(GlooOperations, Halving_FiveToEightRanks_MatchTheReference) {
  const db_option halving = number_option("halving_ranks", 2);
  const db_option chunk = number_option("chunk_bytes", 4096);
  for (const char* algorithm : {"exchange", "scatter"}) {
    const db_option option = text_option("algorithm", algorithm);
    for (int32_t size = 5; size <= 8; ++size) {
      Job job;
      job.size = size;
      job.options = {&option, &halving, &chunk};
      expect_ranks(job, [&](int32_t rank, Rank& self) {
        for (const uint64_t count : {3, 5009})
          check_reductions<float>(self, rank, size, DB_F32, count);
        check_movers(self, rank, size, 3, true);
        check_same_bits(self, rank, size, 1003);
      });
    }
  }
}

// libgloo divides a reduction into segments of at most 1 MiB, at least two per rank; here more.
TEST_P(GlooOperationsByAlgorithm, Reductions_OfManySegments_MatchTheReference) {
  constexpr uint64_t kCount = (10 << 18) + 3;
  expect_ranks(job_of(3), [&](int32_t rank, Rank& self) {
    std::vector<float> send(kCount), recv(kCount);
    for (uint64_t i = 0; i < kCount; ++i) send[i] = value<float>(rank, i);
    db_op op = all_reduce(send.data(), recv.data(), kCount);
    op.root_or_peer = 1;
    for (const db_kind kind : {DB_ALL_REDUCE, DB_REDUCE}) {
      op.kind = kind;
      std::fill(recv.begin(), recv.end(), -1.0f);
      ASSERT_EQ(self.run(op, true), DB_OK) << self.error.text.data();
      if (kind == DB_REDUCE && rank != 1) continue;
      uint64_t i = 0;
      while (i < kCount && recv[i] == combined<float>(DB_SUM, 3, i, 1)) ++i;
      ASSERT_EQ(i, kCount) << "kind " << kind;
    }
  });
}

TEST_P(GlooOperationsByAlgorithm, AllReduce_FloatsThatRound_SameBitsOnEveryRank) {
  for (const uint64_t count : {500, 100003}) {
    expect_ranks(job_of(4),
                 [&](int32_t rank, Rank& self) { check_same_bits(self, rank, 4, count); });
  }
}

TEST_P(GlooOperationsByAlgorithm, Movers_EveryKindAndSize_MatchTheReference) {
  for (int32_t size = 1; size <= 4; ++size) {
    expect_ranks(job_of(size), [&](int32_t rank, Rank& self) {
      for (const uint64_t count : {1, 5, 1009, 60013})
        for (const bool blocking : {true, false}) check_movers(self, rank, size, count, blocking);
    });
  }
}

TEST(GlooOperations, SendAndReceive_ReceiveFirstInARing_AllArrive) {
  Job job;
  job.size = 3;
  for (const uint64_t count :
       {uint64_t{1}, uint64_t{3} << 20}) {  // 12 MiB: more than sockets buffer
    expect_ranks(job, [&](int32_t rank, Rank& self) {
      const int32_t next = (rank + 1) % 3, before = (rank + 2) % 3;
      std::vector<float> out(count, static_cast<float>(rank)), in(count, -1);
      db_op receive{}, send{};
      receive.struct_size = send.struct_size = sizeof send;
      receive.memory = send.memory = DB_MEMORY_HOST;
      receive.dtype = send.dtype = DB_F32;
      receive.count = send.count = count;
      receive.tag = send.tag = 12;
      receive.kind = DB_RECV;
      receive.root_or_peer = before;
      receive.recv = in.data();
      send.kind = DB_SEND;
      send.root_or_peer = next;
      send.send = out.data();
      for (int round = 0; round < 20; ++round) {
        db_request *first = nullptr, *second = nullptr;
        Error error;
        ASSERT_EQ(self.functions->submit(self.communicator, &receive, &first, error) >= 0, true);
        ASSERT_EQ(self.functions->submit(self.communicator, &send, &second, error) >= 0, true);
        for (db_request* request : {first, second}) {
          if (request == nullptr) continue;
          ASSERT_EQ(self.functions->wait_host(request, -1, error), DB_OK) << error.text.data();
          self.functions->release(request);
        }
        ASSERT_EQ(in[count - 1], static_cast<float>(before));
      }
      float one = 1;  // collectives still work
      ASSERT_EQ(self.run(all_reduce(&one, &one, 1), true), DB_OK);
      EXPECT_EQ(one, 3);
    });
  }
}

TEST_P(GlooOperationsByAlgorithm, ManyAsynchronous_WaitedInReverse_AllRight) {
  expect_ranks(job_of(2), [&](int32_t rank, Rank& self) {
    constexpr size_t kOperations = 64;
    std::vector<std::vector<float>> data;
    std::vector<db_request*> requests(kOperations);
    Error error;
    for (size_t i = 0; i < kOperations; ++i)
      data.emplace_back(1 + i * 997, static_cast<float>(rank + 1));
    for (size_t i = 0; i < kOperations; ++i) {
      db_op op = all_reduce(data[i].data(), data[i].data(), data[i].size());
      op.struct_size = sizeof op;
      op.memory = DB_MEMORY_HOST;
      ASSERT_GE(self.functions->submit(self.communicator, &op, &requests[i], error), 0);
    }
    for (size_t i = kOperations; i-- > 0;) {
      if (requests[i] == nullptr) continue;
      ASSERT_EQ(self.functions->wait_host(requests[i], -1, error), DB_OK) << error.text.data();
      self.functions->release(requests[i]);
    }
    for (const auto& each : data) ASSERT_EQ(each.back(), 3);
  });
}

TEST_P(GlooOperationsByAlgorithm, Split_OddAndEvenReversed_NewRanksAndParentBothWork) {
  expect_ranks(job_of(4), [&](int32_t rank, Rank& self) {
    db_communicator* half = nullptr;
    Error error;
    ASSERT_EQ(self.functions->split(self.communicator, rank % 2, -rank, &half, error), DB_OK)
        << error.text.data();
    ASSERT_NE(half, nullptr);
    EXPECT_EQ(half->size, 2);
    EXPECT_EQ(half->rank, rank < 2 ? 1 : 0);
    db_communicator* none = nullptr;
    ASSERT_EQ(self.functions->split(self.communicator, rank == 0 ? 7 : -1, 0, &none, error), DB_OK);
    EXPECT_EQ(none != nullptr, rank == 0);
    if (none != nullptr) none->functions->destroy(none);
    float sum = static_cast<float>(rank);
    ASSERT_EQ(self.run(all_reduce(&sum, &sum, 1), true), DB_OK);
    EXPECT_EQ(sum, 6);
    // The parent is destroyed first.
    self.functions->destroy(self.communicator);
    self.communicator = half;
    std::vector<float> many(100000, static_cast<float>(rank));
    ASSERT_EQ(self.run(all_reduce(many.data(), many.data(), many.size()), false), DB_OK);
    EXPECT_EQ(many.back(), rank % 2 == 0 ? 2 : 4);
  });
}

}  // namespace
}  // namespace backend_test
